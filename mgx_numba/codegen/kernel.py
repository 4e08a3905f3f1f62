"""A kernel as source text, and the identity under which its machine code is kept.

Neither this nor computing an identity needs Numba; LLVM only on the first use on a machine (see `platform`).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field

__all__ = ["KernelSource"]


@dataclass(frozen=True)
class KernelSource:
    """Python source of one kernel.

    ``text`` defines ``def kernel(args, begin, end)``, whose compiled form is ``void kernel(int64_t *args,
    int64_t begin, int64_t end)`` over the tiles ``begin <= i < end`` (annotated ``-> int`` it returns an ``int64_t``);
    it may call every name of `mgx_numba.codegen.cpu.vocabulary`. ``name`` is for readers, in MIGraphX's style
    (``mul_add_relu_kernel``). ``origin`` holds the printed instructions it was made from; neither of them changes
    the machine code.
    """

    name: str
    text: str
    origin: str = field(default="", compare=False)

    def identity(self) -> dict[str, str]:
        """Everything that the machine code depends on, by field name; equal identities have equal objects."""
        from .cpu.identity import environment_identity  # late: reading a KernelSource needs no LLVM

        return {"source": hashlib.sha256(self.text.encode()).hexdigest(), **environment_identity()}

    @functools.cached_property
    def symbol(self) -> str:
        """Exported symbol and name in the object store: ``mgx_`` and 24 hexadecimal digits."""
        lines = "".join(f"{key}={value}\n" for key, value in sorted(self.identity().items()))
        return "mgx_" + hashlib.sha256(lines.encode()).hexdigest()[:24]
