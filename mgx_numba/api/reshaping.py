"""Implementation of ``program.reshape``: narrows dynamic inputs, or parses the model again for other lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.shape import DynamicDimension, Shape
from ..errors import OptionError
from .shape import unwrap_dimension

if TYPE_CHECKING:
    from ..graph.program import Program

__all__ = ["Reread", "narrowed"]


def narrowed(program: Program, dims: Mapping[str, Sequence[Any]]) -> Program:
    """Return a copy of the program whose inputs have the given lengths or ranges.

    Raises:
        OptionError: an input is unknown, has another rank, or a dimension is out of range.
        MgxError: the lengths do not fit the program.
    """
    from ..graph.specialize import specialize

    shapes = program.parameter_shapes()
    given = {}
    for name, values in dims.items():
        if name not in shapes:
            raise OptionError(f"reshape names {name!r}, which is no input; inputs are: {', '.join(shapes) or 'none'}")
        given[name] = _within(name, shapes[name], values)
    return specialize(program, given)


class Reread:
    """A parser of a model for other lengths, used if ``MIGRAPHX_DYNAMIC_SHAPE`` is set."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Sequence[int]]], Program],
        first: Program,
        longest: Mapping[str, Sequence[int]],
    ) -> None:
        """Store the parser ``read``, which made ``first`` for the lengths ``longest``."""
        self._read = read
        self._longest = {name: first.parameter_shapes()[name].lens for name in longest}
        self._lengths: dict[str, Sequence[int]] = dict(self._longest)

    def program(self, now: Program, lengths: Mapping[str, Sequence[Any]]) -> Program:
        """Return the model parsed for other lengths; inputs not named keep the lengths of the previous call.

        Raises:
            OptionError: an input is unknown, has another rank, or is longer than at first; or the program ``now``
                differs from the parsed program.
        """
        found = dict(self._lengths)
        for name, values in lengths.items():
            if name not in self._longest:
                raise OptionError(
                    f"reshape names {name!r}, which was not given lengths; inputs that were: {', '.join(self._longest)}"
                )
            longest, wanted = self._longest[name], [n for n in _listed(name, values) if isinstance(n, int)]
            if len(wanted) != len(longest) or not all(1 <= n <= most for n, most in zip(wanted, longest)):
                raise OptionError(
                    f"reshape: {name!r} was parsed for at most {list(longest)}, which does not hold {list(values)}"
                )
            found[name] = wanted
        if self._read(self._lengths) != now:
            raise OptionError("reshape: the program was changed after it was parsed, and cannot be read again")
        result = self._read(found)
        self._lengths = found
        return result


def _listed(name: str, values: Any) -> list[DynamicDimension | int]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise OptionError(f"reshape: {name!r} needs a list of dimensions, got {values!r}")
    return [unwrap_dimension(value) for value in values]


def _within(name: str, shape: Shape, values: Sequence[Any]) -> list[DynamicDimension]:
    wanted = _listed(name, values)
    found = [d if isinstance(d, DynamicDimension) else DynamicDimension(int(d), int(d)) for d in wanted]
    known = shape.dims if not shape.without_axes else ()
    if len(found) != len(known):
        raise OptionError(f"reshape: {name!r} has {len(known)} dimensions, got {len(found)}")
    for axis, (new, old) in enumerate(zip(found, known)):
        if not old.min <= new.min <= new.max <= old.max:
            raise OptionError(f"reshape: dimension {axis} of {name!r} is {old}, which does not hold {new}")
    return [replace(new, symbol=old.symbol) for new, old in zip(found, known)]
