"""Element types of problems, by the names that NumPy and ml_dtypes give them."""

from __future__ import annotations

from ...errors import ShapeError

__all__ = ["ITEMSIZE", "check_dtype"]

ITEMSIZE = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""Bytes of one element of the dtypes that a problem's operands may have."""


def check_dtype(dtype: str) -> None:
    """Check that contractions are computed in an element type.

    Raises:
        ShapeError: they are not.
    """
    if dtype not in ("float32", "float64"):
        raise ShapeError(f"contraction of dtype {dtype}; expected float32 or float64")
