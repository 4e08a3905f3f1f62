"""What machine code for a GPU depends on besides a kernel's own text. Needs neither Numba nor LLVM."""

from __future__ import annotations

from ..identity import SHARED_MEANING, files_digest
from ..platform import platform
from .architecture import Architecture, chosen
from .driver.device import architecture_of
from .kernel import NAME

__all__ = ["environment_identity", "selected_architecture"]

FORMAT = "1"
_MEANING = (
    *SHARED_MEANING,
    "gpu/vocabulary.py",
    "gpu/architecture.py",
    "gpu/lang/*.py",
    "gpu/toolchain/*.py",
)
"""Files of code generation that give a kernel's text its meaning."""


def selected_architecture() -> Architecture:
    """What kernels are compiled for: what is named, else what the first device is.

    Raises:
        DeviceError: neither is there.
    """
    return chosen() or architecture_of(0)


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
        "intrinsics": files_digest(_MEANING),
    }
