"""What a run is given, made into what a program takes: lists become arrays of their input's element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..errors import ParameterError
from .sparse import SparseTensor
from .values import OrtValue

__all__ = ["fed"]


def fed(feed: Mapping[str, Any], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Return the values of a run's inputs.

    Args:
        feed: what the caller gave, by name of inputs.
        shapes: what inputs are declared as.

    Raises:
        ParameterError: a list that no array of the input's element type can be made of, or a sparse tensor.
    """
    return {name: _value(name, value, shapes.get(name)) for name, value in feed.items()}


def _value(name: str, value: Any, wanted: Shape | None) -> Any:
    if isinstance(value, OrtValue):
        return value._value
    if isinstance(value, SparseTensor):
        raise ParameterError(f"input {name!r} is given as a sparse tensor; inputs are dense")
    if wanted is None or wanted.element is not None or not isinstance(value, (list, tuple)):
        return value
    return value if wanted.type is Type.string_type else _array(name, value, wanted.type)


def _array(name: str, value: Any, type_: Type) -> np.ndarray[Any, Any]:
    """Return a list of numbers as an array; fractions are cut off for integers, as ONNX Runtime does.

    Raises:
        ParameterError: lengths differ, a member is no number, or the element type does not hold a member.
    """
    try:
        found = np.array(value)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"input {name!r}: the list is not an array: {error}") from None
    dtype = np.dtype(type_.numpy)
    if found.size == 0:
        return found.astype(dtype)
    if found.dtype.kind not in "biufc" and found.dtype.kind != "V":
        kind = "text" if found.dtype.kind in "SU" else "no numbers, or integers beyond 64 bits"
        raise ParameterError(f"input {name!r}: the list holds {kind}, expected {dtype}")
    if type_.is_integral and type_ is not Type.bool_type:
        found = np.trunc(found) if found.dtype.kind == "f" else found
        limits = np.iinfo(dtype)
        fits = (found >= limits.min) & (found <= limits.max)
        if not fits.all():
            raise ParameterError(f"input {name!r}: {found[~fits].flat[0]} is out of the range of {dtype}")
    return found.astype(dtype)
