"""Conversion of the inputs of a run: lists become arrays of the input's element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..errors import MgxError, ParameterError
from .exceptions import error_of
from .sparse import SparseTensor
from .values import OrtValue


def fed(feed: Mapping[str, object], shapes: Mapping[str, Shape]) -> dict[str, object]:
    """Return the values of a run's inputs, with lists converted to arrays.

    Args:
        feed: the caller's values, by input name.
        shapes: declared shapes of the inputs, by input name.

    Raises:
        ParameterError: a list cannot be converted to the input's element type, or a value is a sparse tensor.
    """
    found = dict(feed)
    for name, value in feed.items():
        if type(value) is not np.ndarray:
            found[name] = _value(name, value, shapes.get(name))
    return found


def _value(name: str, value: object, wanted: Shape | None) -> Any:
    if isinstance(value, OrtValue) and not value.is_sparse_tensor():
        return value._value
    if isinstance(value, (OrtValue, SparseTensor)):
        raise ParameterError(f"input {name!r} is given as a sparse tensor; inputs are dense")
    if wanted is None or not isinstance(value, (list, tuple)) or wanted.type is Type.map_type:
        return value
    if wanted.type is Type.sequence_type:
        return [_value(f"{name}[{k}]", member, wanted.element) for k, member in enumerate(value)]
    if wanted.element is not None:
        return _value(name, value, wanted.element)
    return value if wanted.type is Type.string_type else _array(name, value, wanted.type)


def _array(name: str, value: object, type_: Type) -> np.ndarray:
    """Return a list of numbers as an array; integer types truncate fractions, as in ONNX Runtime.

    Raises:
        ParameterError: lengths differ, a member is not a number, or the element type cannot hold a member.
    """
    try:
        found = np.array(value)
    except (TypeError, ValueError) as error:
        raise _refused(f"input {name!r}: the list is not an array: {error}") from None
    dtype = np.dtype(type_.numpy)
    if found.size == 0:
        return np.zeros(found.shape, dtype)
    if found.dtype.kind not in "biufc" and found.dtype.kind != "V":
        kind = "text" if found.dtype.kind in "SU" else "no numbers, or integers beyond 64 bits"
        raise _refused(f"input {name!r}: the list holds {kind}, expected {dtype}")
    if not type_.is_integral or type_ is Type.bool_type:
        return found.astype(dtype)
    import ml_dtypes  # late: importing it takes milliseconds

    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # covers int4, too
    whole = found.dtype.kind in "biu"
    try:
        if whole and found.min() >= limits.min and found.max() <= limits.max:
            return found.astype(dtype)
        # NumPy chooses float64 if neither int64 nor uint64 can hold all members: convert them one by one.
        members = (found if whole else np.array(value, object)).flat
        return np.array([_within(int(member), limits) for member in members], dtype).reshape(found.shape)
    except (OverflowError, ValueError) as error:
        raise _refused(f"input {name!r}: {error}, expected {dtype}") from None


def _refused(message: str) -> MgxError:
    return error_of(RuntimeError, ParameterError, message)


def _within(member: int, limits: Any) -> int:
    if not limits.min <= member <= limits.max:
        raise OverflowError(f"{member} is out of range")
    return member
