"""Sequences and optionals as users give and get them: lists and tuples, and ``None``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.argument import Argument
from ..core.shape import Shape
from ..core.types import Type
from ..errors import ParameterError
from ..ops.sequence import holding
from .argument import argument

__all__ = ["held_value", "users_value"]

Check = Callable[[str, Any, Shape], np.ndarray]


def held_value(name: str, value: Any, wanted: Shape, check: Check) -> np.ndarray:
    """A sequence (a list or a tuple) or an optional (``None`` if it holds nothing) as operators take it.

    Args:
        name: what it is called in messages.
        value: what the user gave.
        wanted: the shape of a sequence or an optional.
        check: what gives the array of a tensor in it.

    Raises:
        ParameterError: it is neither, or something that it holds does not fit.
    """
    element = wanted.element
    assert element is not None
    if wanted.type is Type.optional_type:
        members = [] if value is None else [(name, value)]
    elif isinstance(value, (list, tuple)):
        members = [(f"{name}[{k}]", member) for k, member in enumerate(value)]
    else:
        raise ParameterError(f"parameter {name} is of type {type(value).__name__}; expected a list for {wanted}")
    if element.element is not None:
        return holding(held_value(of, member, element, check) for of, member in members)
    return holding(_true_rank(check(of, member, element), element) for of, member in members)


def _true_rank(array: np.ndarray, shape: Shape) -> np.ndarray:
    return array.reshape(()) if shape.without_axes else array


def users_value(value: np.ndarray, shape: Shape) -> Any:
    """What a user gets for a sequence or an optional: a list, a value or ``None``; arguments with their own memory."""
    element = shape.element
    if element is None:
        return argument.wrap(Argument.from_array(np.array(value, order="C")))
    members = [users_value(member, element) for member in value]
    if shape.type is Type.sequence_type:
        return members
    return members[0] if members else None
