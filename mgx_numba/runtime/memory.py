"""Aligned memory, dtypes by name, and addresses of arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

__all__ = ["ALIGNMENT", "address_of", "aligned_empty", "numpy_dtype", "scratch"]

ALIGNMENT = 64
_HUGE_PAGE = 2 << 20


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a NumPy or ml_dtypes type name."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def address_of(array: np.ndarray) -> int:
    """Address of an array's first element."""
    return array.__array_interface__["data"][0]


def aligned_empty(lens: Sequence[int], dtype: str | np.dtype) -> np.ndarray:
    """A new C-contiguous array with undefined contents that starts at a multiple of 64 bytes."""
    return _aligned(lens, numpy_dtype(dtype) if isinstance(dtype, str) else dtype, ALIGNMENT)


def scratch(size: int) -> np.ndarray:
    """``size`` bytes for kernels, 64-byte aligned; large ones start on a huge page, which NumPy asks for."""
    return _aligned((size,), np.dtype(np.uint8), ALIGNMENT if size < _HUGE_PAGE else _HUGE_PAGE)


def _aligned(lens: Sequence[int], dtype: np.dtype, alignment: int) -> np.ndarray:
    buffer = np.empty(math.prod(lens) * dtype.itemsize + alignment, np.uint8)
    return np.ndarray(lens, dtype, buffer, -address_of(buffer) % alignment)
