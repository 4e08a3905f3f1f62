"""Everything beside a kernel's text that its machine code depends on. Imports neither Numba nor LLVM."""

from __future__ import annotations

from ..identity import SHARED_MEANING, files_digest
from ..platform import platform
from .driver.device import selected_architecture
from .kernel import NAME
from .toolchain.choice import toolchain_identity

FORMAT = "1"
MEANING = (
    *SHARED_MEANING,
    "gpu/vocabulary.py",
    "gpu/architecture.py",
    "gpu/products.py",
    "gpu/matrix_tiles.py",
    "gpu/lang/*.py",
    "gpu/toolchain/*.py",
)
"""Source files that define the meaning of kernel text."""


def environment_identity() -> dict[str, str]:
    """Return the identity fields that all kernels of this process share."""
    here, arch = platform(), selected_architecture()
    return {
        "backend": NAME,
        "format": FORMAT,
        "architecture": arch.name,
        "toolchain": toolchain_identity(),
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": files_digest(MEANING),
    }
