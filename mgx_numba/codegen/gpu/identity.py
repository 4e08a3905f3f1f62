"""What machine code for a GPU depends on besides a kernel's own text. Needs neither Numba nor LLVM."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from ..cpu.platform import platform
from .architecture import Architecture, chosen
from .driver.device import device
from .kernel import NAME

__all__ = ["environment_identity", "selected_architecture"]

FORMAT = "1"
_MEANING = (
    "gpu/vocabulary.py",
    "gpu/architecture.py",
    "gpu/lang/*.py",
    "gpu/toolchain/*.py",
    "cpu/lang/*.py",
    "cpu/toolchain/frontend.py",
    "cpu/toolchain/numba_passes.py",
)
"""Files of the code generator that give a kernel's text its meaning."""


def selected_architecture() -> Architecture:
    """What kernels are compiled for: what is named, else what the first device is.

    Raises:
        DeviceError: neither is there.
    """
    return chosen() or device().architecture


def environment_identity() -> dict[str, str]:
    """What is the same in the identity of every kernel of this process, by field name."""
    here, arch = platform(), selected_architecture()
    return {
        "backend": NAME,
        "format": FORMAT,
        "architecture": arch.name,
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": _intrinsics_digest(),
    }


@functools.lru_cache(maxsize=1)
def _intrinsics_digest() -> str:
    """SHA-256 of the files that `_MEANING` names."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _MEANING for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
