"""Conversion of sequences, optionals and maps between Python values (lists, ``None``, dictionaries) and the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type
from ..errors import ParameterError
from ..ops.sequence import holding
from .argument import argument


class _Checked(np.ndarray):
    """A value that `held_value` has converted, which needs no second check."""


Check = Callable[[str, object, Shape], np.ndarray]


def held_value(name: str, value: object, wanted: Shape, check: Check) -> np.ndarray:
    """Convert a sequence (list or tuple), an optional (``None`` if empty) or a map to the form that operators take.

    Args:
        name: name of the value in messages.
        value: value that the user passed.
        wanted: the shape of a sequence, an optional or a map.
        check: converts and checks a tensor inside the value.

    Raises:
        ParameterError: the value has another kind, or an element does not fit.
    """
    if isinstance(value, _Checked):
        return value
    element = wanted.element
    assert element is not None
    if wanted.type is Type.map_type:
        return _map(name, value, element).view(_Checked)
    if wanted.type is Type.optional_type:
        members = [] if value is None else [(name, value)]
    elif isinstance(value, (list, tuple)):
        members = [(f"{name}[{k}]", member) for k, member in enumerate(value)]
    else:
        raise ParameterError(f"parameter {name} is of type {type(value).__name__}; expected a list for {wanted}")
    if element.element is not None:
        return holding(held_value(of, member, element, check) for of, member in members).view(_Checked)
    return holding(_true_rank(check(of, member, element), element) for of, member in members).view(_Checked)


def _map(name: str, value: object, element: Shape) -> np.ndarray:
    key, item = (s.type for s in element.sub_shapes)
    if not isinstance(value, Mapping):
        raise ParameterError(f"parameter {name} is of type {type(value).__name__}; expected a mapping")
    return holding([{_scalar(name, k, key): _scalar(f"{name}[{k!r}]", v, item) for k, v in value.items()}])


def _scalar(name: str, value: object, wanted: Type) -> object:
    """Return a key or a value of a map: a ``str``, or a Python number that the element type can hold."""
    text = wanted is Type.string_type
    fits = (
        isinstance(value, str) if text else isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    )
    if fits and wanted.is_integral:
        fits = isinstance(value, (int, np.integer))
    if not fits:
        raise ParameterError(f"parameter {name}: {value!r} is no {wanted.name}")
    return value if text else wanted.numpy.type(value).item()


def _true_rank(array: np.ndarray, shape: Shape) -> np.ndarray:
    return array.reshape(()) if shape.without_axes else array


def users_value(value: np.ndarray, shape: Shape) -> object:
    """Convert a sequence, an optional or a map to the user's form: a list, a value or ``None``, or a dictionary.

    Tensors inside become new arguments.
    """
    element = shape.element
    if shape.type is Type.map_type:
        return dict(value[0])
    if element is None:
        return argument.wrap(Argument.from_array(np.array(value, order="C")))
    members = [users_value(member, element) for member in value]
    if shape.type is Type.sequence_type:
        return members
    return members[0] if members else None
