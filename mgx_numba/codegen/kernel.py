"""A kernel as source text, and the identity under which its machine code is kept.

Neither this nor computing an identity needs Numba; LLVM only on the first use on a machine (see `platform`).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KernelSource"]

FORMAT = "1"


@dataclass(frozen=True)
class KernelSource:
    """Python source of one kernel.

    ``text`` defines ``def kernel(args, begin, end)``, whose compiled form is ``void kernel(int64_t *args,
    int64_t begin, int64_t end)`` over the tiles ``begin <= i < end`` (annotated ``-> int`` it returns an ``int64_t``);
    it may call every name of `mgx_numba.codegen.cpu.lang`. ``name`` is for readers, in MIGraphX's style
    (``mul_add_relu_kernel``). ``origin`` holds the printed instructions it was made from; neither of them changes
    the machine code.
    """

    name: str
    text: str
    origin: str = field(default="", compare=False)

    def identity(self) -> dict[str, str]:
        """Everything that the machine code depends on, by field name; equal identities have equal objects."""
        return {"source": hashlib.sha256(self.text.encode()).hexdigest(), **environment_identity()}

    @functools.cached_property
    def symbol(self) -> str:
        """Exported symbol and name in the object store: ``mgx_`` and 24 hexadecimal digits."""
        lines = "".join(f"{key}={value}\n" for key, value in sorted(self.identity().items()))
        return "mgx_" + hashlib.sha256(lines.encode()).hexdigest()[:24]


def environment_identity() -> dict[str, str]:
    """What is the same in every identity: versions, CPU, and the intrinsics' own source."""
    from .cpu.host import host  # late: reading a KernelSource needs no LLVM

    cpu = host()
    return {**_versions(), "cpu": cpu.name, "features": cpu.feature_string}


@functools.lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    from .platform import platform

    here = platform()
    return {
        "format": FORMAT,
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": _intrinsics_digest(),
    }


def _intrinsics_digest() -> str:
    """SHA-256 of the modules that give a text its meaning: ``codegen/cpu/*.py`` and the compiler."""
    codegen = Path(__file__).parent
    files = [*codegen.glob("cpu/*.py"), *(codegen / name for name in ("compiler.py", "frontend.py", "pipeline.py"))]
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda e: e.name):
        digest.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()
