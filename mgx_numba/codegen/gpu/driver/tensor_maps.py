"""Encode tensor layouts as TMA descriptors (CUtensorMap) of compute capability 9.0 and above."""

from __future__ import annotations

from ctypes import c_int, c_uint, c_uint32, c_uint64, c_void_p

import numpy as np

from ....core.types import from_numpy, numpy_dtype
from ...launch import TensorLayout, TensorMap
from .library import Driver

# Enumerations of cuda.h, CUtensorMap...
_TYPES = {
    **dict.fromkeys(("uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 0),  # bytes, which nothing is computed of
    "float16": 6, "float32": 7, "bfloat16": 9,
}  # fmt: skip
_INTERLEAVE_NONE, _SWIZZLE_128, _PROMOTION_256, _FILL_ZEROS = 0, 3, 3, 0
_RANK = 4
_ALIGNMENT = 64
"""Alignment (bytes) of a descriptor."""


def data_type(dtype: str) -> int:
    """Return the driver's number of a type of elements."""
    return _TYPES[dtype]


def encoded(driver: Driver, layout: TensorLayout, address: int) -> np.ndarray:
    """The words of a tensor whose first element is at an address of the current context's device.

    Raises:
        DeviceError: the driver does not take the layout.
    """
    size = from_numpy(numpy_dtype(layout.dtype)).size
    memory = np.zeros(TensorMap.WORDS * 8 + _ALIGNMENT, np.uint8)
    begin = memory.__array_interface__["data"][0]
    start = -begin % _ALIGNMENT
    words = memory[start : start + TensorMap.WORDS * 8]
    tail = (c_int(_INTERLEAVE_NONE), c_int(_SWIZZLE_128), c_int(_PROMOTION_256), c_int(_FILL_ZEROS))
    common = (
        c_void_p(begin + start), c_int(data_type(layout.dtype)), c_uint32(_RANK), c_void_p(address),
        (c_uint64 * _RANK)(*layout.lens), (c_uint64 * (_RANK - 1))(*(s * size for s in layout.strides[1:])),
    )  # fmt: skip
    windows = layout.windows
    if windows is None:
        box, ones = (c_uint32 * _RANK)(*layout.box), (c_uint32 * _RANK)(1, 1, 1, 1)
        driver.call("cuTensorMapEncodeTiled", *common, box, ones, *tail)
    else:
        lower, upper = (c_int * 2)(*windows.lower), (c_int * 2)(*windows.upper)
        steps = (c_uint32 * _RANK)(1, *windows.steps, 1)
        channels, positions = c_uint(layout.box[0]), c_uint(layout.box[1])
        driver.call("cuTensorMapEncodeIm2col", *common, lower, upper, channels, positions, steps, *tail)
    return words.view(np.int64).copy()
