"""Tensors of strings: NumPy arrays of dtype ``object`` whose elements are ``str``."""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError

_TEXT_KINDS = "OSUT"  # objects, bytes, fixed-width str, and NumPy 2's StringDType


def is_text(dtype: np.dtype) -> bool:
    """Return whether arrays of this dtype may hold strings."""
    return dtype.kind in _TEXT_KINDS


def as_strings(array: np.ndarray) -> np.ndarray:
    """Return an array of ``str`` objects: the array itself if it is one, else a copy with bytes decoded (UTF-8).

    Raises:
        ShapeError: an element is neither ``str`` nor UTF-8 bytes; the message has its position in an array of several.
    """
    if array.dtype.kind == "O" and set(map(type, array.reshape(-1).tolist())) <= {str}:
        return array
    strings = np.empty(array.shape, object)
    strings.reshape(-1)[:] = [_text(x, k, array.shape) for k, x in enumerate(array.reshape(-1))]
    return strings


def _text(value: object, number: int, lens: tuple[int, ...]) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ShapeError(f"element {_place(number, lens)} is no UTF-8 text: {value!r}") from None
    if isinstance(value, str):
        return str(value)
    kind = type(value).__name__
    if not lens:
        raise ShapeError(f"{kind} is neither an array nor a number nor str")
    raise ShapeError(f"element {_place(number, lens)} is of type {kind}, expected str, as in all arrays of objects")


def _place(number: int, lens: tuple[int, ...]) -> list[int]:
    return [int(k) for k in np.unravel_index(number, lens)]
