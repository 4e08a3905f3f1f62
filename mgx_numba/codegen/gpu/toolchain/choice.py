"""Which toolchain makes PTX of kernels: LLVM's own code generator, or Numba's official CUDA target with libNVVM."""

from __future__ import annotations

import functools
import os

from ....errors import OptionError

__all__ = ["NUMBA_CUDA", "OWN", "toolchain", "toolchain_identity"]

ENVIRONMENT = "MGX_GPU_TOOLCHAIN"
OWN, NUMBA_CUDA = "llvmlite", "numba-cuda"
_PACKAGES = {OWN: (), NUMBA_CUDA: ("numba-cuda", "cuda-bindings", "nvidia-nvvm")}
"""Packages that PTX depends on besides those of any kernel's identity; libNVVM may come with a toolkit instead."""


def toolchain() -> str:
    """That which ``MGX_GPU_TOOLCHAIN`` names, `OWN` where it is not set.

    Raises:
        OptionError: it names something else.
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
    """The toolchain with the versions of what it brings."""
    return _versions(toolchain())
