"""Shapes of the results of ``run``, including shapes that an array alone does not determine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.device_array import DeviceArray
from ..core.shape import Shape
from ..core.types import Type
from .argument import argument


def result_shape(s: Shape) -> Shape:
    """Return the shape in which ``run`` returns a result: standard, but a scalar of one element is unchanged."""
    return s if s.scalar and s.elements == 1 else s.to_standard()


def shapes_beside_arrays(shapes: Sequence[Shape]) -> dict[int, Shape]:
    """Return, by position, the result shapes that an array does not determine.

    These are shapes with axes of stride 0, without lengths, with 4-bit elements, or with elements that hold tensors.
    """
    fixed = {k: s for k, s in enumerate(shapes) if not s.is_dynamic and not s.sub_shapes}
    single = {k for k, s in fixed.items() if s.elements == 1 and (s.scalar or not s.lens) and s.lens != (1,)}
    holders = {k: s for k, s in enumerate(shapes) if s.element is not None}
    return holders | {k: result_shape(s) for k, s in fixed.items() if k in single or s.type is Type.fp4x2_type}


def result_of(value: Any, known: Shape | None) -> Any:
    """Return a result, or a list of results, in the user's form.

    ``known`` is the result's entry of `shapes_beside_arrays`, if any.
    """
    if type(value) is list or type(value) is tuple:
        return [result_of(v, None) for v in value]
    if known is not None and known.element is not None:
        from .holders import users_value

        return users_value(value, known)
    if isinstance(value, DeviceArray):
        from .device import device_argument

        found = device_argument.wrap(value)
    else:
        found = value.view(argument)
    return found if known is None else found.shaped(known)
