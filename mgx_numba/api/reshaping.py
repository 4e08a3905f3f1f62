"""``program.reshape``: other dimensions for dynamic inputs, within those that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.shape import DynamicDimension, Shape
from ..errors import OptionError
from ..graph.program import Program
from ..graph.specialize import specialize
from .shape import unwrap_dimension

__all__ = ["narrowed"]


def narrowed(program: Program, dims: Mapping[str, Sequence[Any]]) -> Program:
    """A copy whose inputs have these lengths or ranges.

    Raises:
        OptionError: no such input, another number of dimensions, or one outside of its range.
        MgxError: the lengths do not fit the program.
    """
    shapes = program.parameter_shapes()
    given = {}
    for name, values in dims.items():
        if name not in shapes:
            raise OptionError(f"reshape names {name!r}, which is no input; inputs are: {', '.join(shapes) or 'none'}")
        given[name] = _within(name, shapes[name], values)
    return specialize(program, given)


def _within(name: str, shape: Shape, values: Sequence[Any]) -> list[DynamicDimension]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise OptionError(f"reshape: {name!r} needs a list of dimensions, got {values!r}")
    wanted = [unwrap_dimension(value) for value in values]
    found = [d if isinstance(d, DynamicDimension) else DynamicDimension(int(d), int(d)) for d in wanted]
    known = shape.dims if not shape.without_axes else ()
    if len(found) != len(known):
        raise OptionError(f"reshape: {name!r} has {len(known)} dimensions, got {len(found)}")
    for axis, (new, old) in enumerate(zip(found, known)):
        if not old.min <= new.min <= new.max <= old.max:
            raise OptionError(f"reshape: dimension {axis} of {name!r} is {old}, which does not hold {new}")
    return [replace(new, symbol=old.symbol) for new, old in zip(found, known)]
