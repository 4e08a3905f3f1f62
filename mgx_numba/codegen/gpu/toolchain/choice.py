"""Choose the toolchain that compiles kernels to PTX: LLVM's code generator, or Numba's official CUDA target with
libNVVM."""

from __future__ import annotations

import functools
import os

from ....errors import OptionError

ENVIRONMENT = "MGX_GPU_TOOLCHAIN"
OWN, NUMBA_CUDA = "llvmlite", "numba-cuda"
_PACKAGES = {OWN: (), NUMBA_CUDA: ("numba-cuda", "cuda-bindings", "nvidia-nvvm")}
"""Packages that PTX depends on beside those of every kernel; libNVVM may also come with a CUDA toolkit."""


def toolchain() -> str:
    """Return the toolchain that ``MGX_GPU_TOOLCHAIN`` names, by default `OWN`.

    Raises:
        OptionError: the name is unknown.
    """
    found = os.environ.get(ENVIRONMENT, "").strip() or OWN
    if found not in _PACKAGES:
        raise OptionError(f"environment variable {ENVIRONMENT}: expected {' or '.join(_PACKAGES)}, got {found!r}")
    return found


@functools.cache
def _versions(name: str) -> str:
    if not _PACKAGES[name]:
        return name
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    told = [name]
    for package in _PACKAGES[name]:
        try:
            told.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            told.append(f"no {package}")
    return ", ".join(told)


def toolchain_identity() -> str:
    """Return the toolchain with its package versions."""
    return _versions(toolchain())
