"""What machine code for a GPU depends on besides a kernel's own text. Needs neither Numba nor LLVM."""

from __future__ import annotations

from ..identity import SHARED_MEANING, files_digest
from ..platform import platform
from .driver.device import selected_architecture
from .kernel import NAME
from .toolchain.choice import toolchain_identity

__all__ = ["environment_identity"]

FORMAT = "1"
_MEANING = (
    *SHARED_MEANING,
    "gpu/vocabulary.py",
    "gpu/architecture.py",
    "gpu/products.py",
    "gpu/matrix_tiles.py",
    "gpu/lang/*.py",
    "gpu/toolchain/*.py",
)
"""Files of code generation that give a kernel's text its meaning."""


def environment_identity() -> dict[str, str]:
    """What is the same in the identity of every kernel of this process, by field name."""
    here, arch = platform(), selected_architecture()
    return {
        "backend": NAME,
        "format": FORMAT,
        "architecture": arch.name,
        "toolchain": toolchain_identity(),
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": files_digest(_MEANING),
    }
