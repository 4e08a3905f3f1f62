"""The identity of machine code for this CPU beside a kernel's own text: versions, CPU, and language implementation.

Needs no Numba; LLVM only on the first use on a machine (see `platform`).
"""

from __future__ import annotations

import functools

from ..identity import SHARED_MEANING, files_digest
from ..platform import platform
from .host import EMULATED_TILES, host
from .kernel import NAME

FORMAT = "2"
MEANING = (
    *SHARED_MEANING,
    "cpu/vocabulary.py",
    "cpu/records.py",
    "cpu/lang/*.py",
    "cpu/microkernels/*.py",
    "cpu/contraction/strassen/tile*.py",
    "cpu/contraction/winograd/transform*.py",
    "cpu/toolchain/compiler.py",
    "cpu/toolchain/frontend.py",
)
"""Source files of code generation that define the meaning of kernel text."""


def environment_identity() -> dict[str, str]:
    """Return the identity fields, by name, that all kernels of this process share."""
    cpu = host()
    features = f"{cpu.feature_string},+{EMULATED_TILES}" if cpu.emulates_tiles else cpu.feature_string
    return {"backend": NAME, **versions(), "cpu": cpu.name, "features": features, "triple": cpu.triple}


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    here = platform()
    return {
        "format": FORMAT,
        "numba": here.numba,
        "llvmlite": here.llvmlite,
        "llvm": here.llvm,
        "intrinsics": files_digest(MEANING),
    }
