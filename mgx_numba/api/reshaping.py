"""Implementation of ``program.reshape``: narrows dynamic inputs, or parses the model again for other lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.shape import DynamicDimension, Shape
from ..errors import OptionError
from .shape import unwrap_dimension

if TYPE_CHECKING:
    from ..graph.program import Program
    from .program import program


def reshaped(p: program, inputs: Mapping[str, Sequence[object]]) -> program:
    """Return a program with other dimensions of its inputs; see ``program.reshape``."""
    if not isinstance(inputs, Mapping):
        raise OptionError(f"reshape needs a mapping of inputs to dimensions, got {type(inputs).__name__}")
    found = p.clone()
    reread = found._source.reread
    if reread is None:
        found.portable = narrowed(p.portable, inputs)
    else:
        found.portable = reread.program(p.portable, inputs)
        found._source.reread = reread
        found._compile_as(p)
    return found


def narrowed(program: Program, dims: Mapping[str, Sequence[object]]) -> Program:
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
    """A parser of a model for other lengths of the inputs that ``map_input_dims`` names."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Sequence[int]]], Program],
        shapes: Mapping[str, Shape],
        longest: Mapping[str, Sequence[int]],
    ) -> None:
        """Create the parser.

        Args:
            read: parses the model for given lengths of inputs.
            shapes: shapes of the parameters after the first parse.
            longest: lengths of that parse, by input: the largest that `program` accepts.
        """
        self._read = read
        self._longest = {name: shapes[name].lens for name in longest}
        self._lengths: dict[str, Sequence[int]] = dict(self._longest)
        self._ranges: dict[str, Sequence[object]] = {}

    def program(self, now: Program, dims: Mapping[str, Sequence[object]]) -> Program:
        """Return the program ``now`` for other lengths; inputs that ``dims`` does not name keep their dimensions.

        Raises:
            OptionError: an input is unknown, has another rank, or a dimension is out of range; or the program ``now``,
                or the model's file, was changed.
        """
        found, ranges = dict(self._lengths), dict(self._ranges)
        for name, values in dims.items():
            if name not in self._longest:
                ranges[name] = values
                continue
            longest, wanted = self._longest[name], [n for n in _listed(name, values) if isinstance(n, int)]
            if len(wanted) != len(longest) or not all(1 <= n <= most for n, most in zip(wanted, longest)):
                raise OptionError(
                    f"reshape: {name!r} was parsed for at most {list(longest)}, which does not hold {list(values)}; "
                    "give map_input_dims of parse_onnx the longest lengths"
                )
            found[name] = wanted
        result = now
        if found != self._lengths:
            if self._parsed(self._lengths, self._ranges) != now:
                raise OptionError(
                    "reshape: the program, or the model's file, was changed after it was parsed, and cannot be parsed "
                    "again; call reshape before, or give the lengths to map_input_dims of parse_onnx"
                )
            result = self._parsed(found, self._ranges)
        if ranges != self._ranges:
            result = narrowed(result, {name: dims[name] for name in ranges if name in dims})
        self._lengths, self._ranges = found, ranges
        return result

    def _parsed(self, lengths: Mapping[str, Sequence[int]], ranges: Mapping[str, Sequence[object]]) -> Program:
        found = self._read(lengths)
        return narrowed(found, ranges) if ranges else found


def _listed(name: str, values: object) -> list[DynamicDimension | int]:
    """Return the dimensions that the caller gave for input ``name``; raise OptionError for anything but a sequence."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise OptionError(f"reshape: {name!r} needs a list of dimensions, got {values!r}")
    return [unwrap_dimension(value) for value in values]


def _within(name: str, shape: Shape, values: Sequence[object]) -> list[DynamicDimension]:
    """Return the new ranges of input ``name``; raise OptionError unless each lies in the range that ``shape`` has."""
    wanted = _listed(name, values)
    found = [d if isinstance(d, DynamicDimension) else DynamicDimension(int(d), int(d)) for d in wanted]
    known = shape.dims if not shape.without_axes else ()
    if len(found) != len(known):
        raise OptionError(f"reshape: {name!r} has {len(known)} dimensions, got {len(found)}")
    for axis, (new, old) in enumerate(zip(found, known)):
        if not old.min <= new.min <= new.max <= old.max:
            raise OptionError(
                f"reshape: dimension {axis} of {name!r} is {old}, which does not hold {new}; parse_onnx of a file with "
                f"map_input_dims={{{name!r}: [...]}}, the longest lengths, lets reshape give any lengths up to these "
                "(of a ModelProto only with MIGRAPHX_DYNAMIC_SHAPE=1 in the environment)"
            )
    return [replace(new, symbol=old.symbol) for new, old in zip(found, known)]
