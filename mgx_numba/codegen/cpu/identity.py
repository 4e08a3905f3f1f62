"""What machine code for this CPU depends on besides a kernel's own text: versions, CPU, the language's implementation.

Needs no Numba; LLVM only on the first use on a machine (see `platform`).
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from .host import host
from .kernel import NAME
from .platform import platform

__all__ = ["environment_identity"]

FORMAT = "1"
_MEANING = (
    "vocabulary.py",
    "records.py",
    "lang/*.py",
    "microkernels/*.py",
    "contraction/strassen/tile*.py",
    "contraction/winograd/transform*.py",
    "toolchain/compiler.py",
    "toolchain/frontend.py",
    "toolchain/numba_passes.py",
    "toolchain/ssa.py",
)
"""Files of this package that give a kernel's text its meaning."""


def environment_identity() -> dict[str, str]:
    """What is the same in the identity of every kernel of this process, by field name."""
    cpu = host()
    return {"backend": NAME, **_versions(), "cpu": cpu.name, "features": cpu.feature_string}


@functools.lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    here = platform()
    return {
        "format": FORMAT,
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": _intrinsics_digest(),
    }


def _intrinsics_digest() -> str:
    """SHA-256 of the files that `_MEANING` names."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _MEANING for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
