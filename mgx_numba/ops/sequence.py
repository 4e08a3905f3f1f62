"""Sequences and optionals: values that hold tensors, in whatever number and of whatever lengths a run gives.

A value is an array of dtype ``object`` with one axis: a sequence's has an element for each tensor, an optional's has
one element or none. Tensors in it have their true rank, 0 included, and memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from ..core.covering import covering
from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register

ANY = DynamicDimension(0, UNBOUNDED)


def holding(values: Iterable[object]) -> np.ndarray:
    """Return a sequence, or an optional, that holds ``values``."""
    values = list(values)
    held = np.empty(len(values), object)
    for k, value in enumerate(values):
        held[k] = value
    return held


def _as_declared(value: np.ndarray, output: Shape) -> np.ndarray:
    """Return a held tensor with the operator's output shape."""
    return value if output.is_dynamic else value.reshape(output.lens)


@dataclass(frozen=True)
class _Holder(Operator):
    """Base class of operators on sequences or optionals."""

    true_ranks: ClassVar[bool] = True

    def held(self, shape: Shape, kind: Type, what: str) -> Shape:
        """Return the element shape of a sequence or an optional.

        Raises:
            ShapeError: the shape is neither.
        """
        if shape.type is not kind or shape.element is None:
            raise self.fail(f"{what} is {shape}, expected a {kind.name.removesuffix('_type')}")
        return shape.element

    def both(self, held: Shape, item: Shape) -> Shape:
        """Return the element shape that covers two shapes."""
        found = covering(held, item.row_major())
        if found is None:
            raise self.fail(f"a tensor is {item}, those beside it are {held}")
        return found


def _index(op: Operator, position: np.ndarray, count: int, last: int) -> int:
    """Return a position counted from the front.

    Raises:
        IndexRangeError: it is not from ``-count`` to ``last``.
    """
    value = int(position.reshape(-1)[0])
    if not -count <= value <= last:
        raise op.bad_index(f"position {value} is out of range for a sequence of {count}")
    return value + count if value < 0 else value


@dataclass(frozen=True)
class _Construct(_Holder):
    """Base class of constructors; ``element``, if given, widens the element shape beyond the inputs'."""

    element: Shape | None = None

    def common(self, inputs: Sequence[Shape]) -> Shape:
        """Return the element shape.

        Raises:
            ShapeError: there is neither an input nor ``element``, or they are incompatible.
        """
        if not inputs and self.element is None:
            raise self.fail("got no input, and no shape of what could be held")
        element = self.element or inputs[0].row_major()
        for shape in inputs:
            element = self.both(element, shape)
        return element

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return holding(np.array(a, order="C") for a in args)


@register
@dataclass(frozen=True)
class SequenceConstruct(_Construct):
    """The inputs as a sequence, in which ``element``, if given, stands for more than their shapes do."""

    name: ClassVar[str] = "sequence_construct"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape.sequence(self.common(inputs))


@register
@dataclass(frozen=True)
class SequenceInsert(_Holder):
    """A sequence with a tensor before the one at a position (at the end without one)."""

    name: ClassVar[str] = "sequence_insert"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2, 3)
        return Shape.sequence(self.both(self.held(inputs[0], Type.sequence_type, "input 0"), inputs[1]))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = list(args[0])
        place = len(values) if len(args) < 3 else _index(self, args[2], len(values), len(values))
        values.insert(place, np.array(args[1], order="C"))
        return holding(values)


@register
@dataclass(frozen=True)
class SequenceErase(_Holder):
    """A sequence without the tensor at a position (the last one without one)."""

    name: ClassVar[str] = "sequence_erase"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1, 2)
        return Shape.sequence(self.held(inputs[0], Type.sequence_type, "input 0"))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = list(args[0])
        del values[_index(self, args[1] if len(args) > 1 else np.array(-1), len(values), len(values) - 1)]
        return holding(values)


@register
@dataclass(frozen=True)
class SequenceAt(_Holder):
    """The tensor at a position of a sequence."""

    name: ClassVar[str] = "sequence_at"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        return self.held(inputs[0], Type.sequence_type, "input 0")

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = args[0]
        return _as_declared(values[_index(self, args[1], len(values), len(values) - 1)], output)


@register
@dataclass(frozen=True)
class SequenceLength(_Holder):
    """The number of tensors in a sequence: an int64 without axes."""

    name: ClassVar[str] = "sequence_length"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        self.held(inputs[0], Type.sequence_type, "input 0")
        return Shape(Type.int64_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(args[0])], np.int64)


@register
@dataclass(frozen=True)
class SplitToSequence(_Holder):
    """Pieces of a tensor along ``axis``: of length 1 (without ``keepdims`` the axis is dropped), or as a second input
    says: a scalar, the length of all but the last, or a vector of lengths."""

    name: ClassVar[str] = "split_to_sequence"
    axis: int = 0
    keepdims: bool = True

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x = self.expect_inputs(inputs, 1, 2)[0]
        if not x.ranked:
            return Shape.sequence(x)
        axis = self.resolve_axis(self.axis, 0 if x.without_axes else x.ndim)
        rest = [x.dims[:axis], x.dims[axis + 1 :]]
        if len(inputs) == 1 and not self.keepdims:
            dims = [*rest[0], *rest[1]]
            return Shape.sequence(Shape.dynamic(x.type, dims) if dims else Shape(x.type))
        length = DynamicDimension(0, x.dims[axis].max)
        return Shape.sequence(Shape.dynamic(x.type, [*rest[0], length, *rest[1]]))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        axis = self.resolve_axis(self.axis, x.ndim)
        if len(args) == 1:
            return holding(np.array(np.moveaxis(p, axis, 0)[0] if not self.keepdims else p) for p in _ones(x, axis))
        lengths = self._lengths(args[1], x.shape[axis])
        ends = np.cumsum(lengths, dtype=np.int64)
        return holding(np.array(p, order="C") for p in np.split(x, ends[:-1], axis)[: len(lengths)])

    def _lengths(self, given: np.ndarray, length: int) -> list[int]:
        if given.ndim == 0:
            size = int(given)
            if size < 1:
                raise self.fail(f"split is {size}, expected at least 1")
            return [min(size, length - start) for start in range(0, length, size)]
        lengths = [int(n) for n in given.reshape(-1)]
        if sum(lengths) != length or min(lengths, default=0) < 0:
            raise self.fail(f"split {lengths} does not fit length {length} of axis {self.axis}")
        return lengths


def _ones(x: np.ndarray, axis: int) -> list[np.ndarray]:
    return [np.take(x, [k], axis) for k in range(x.shape[axis])]


@register
@dataclass(frozen=True)
class ConcatFromSequence(_Holder):
    """The tensors of a sequence joined along ``axis``, which is a new one with ``new_axis``."""

    name: ClassVar[str] = "concat_from_sequence"
    axis: int = 0
    new_axis: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        element = self.held(inputs[0], Type.sequence_type, "input 0")
        if not element.ranked:
            return element
        dims = [] if element.without_axes else list(element.dims)
        axis = self.resolve_axis(self.axis, len(dims) + self.new_axis)
        dims[axis : axis + (not self.new_axis)] = [ANY]
        return Shape.dynamic(element.type, dims)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = list(args[0])
        if not values:
            raise self.fail("the sequence is empty")
        return np.stack(values, self.axis) if self.new_axis else np.concatenate(values, self.axis)


@register
@dataclass(frozen=True)
class OptionalConstruct(_Construct):
    """An optional that holds the input, or with none nothing of the shape ``element``."""

    name: ClassVar[str] = "optional_construct"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0, 1)
        return Shape.optional(self.common(inputs))


@register
@dataclass(frozen=True)
class OptionalGetElement(_Holder):
    """Return the element of an optional."""

    name: ClassVar[str] = "optional_get_element"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        return self.held(inputs[0], Type.optional_type, "input 0")

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        if not len(args[0]):
            raise self.fail("the optional holds nothing")
        return _as_declared(args[0][0], output)


@register
@dataclass(frozen=True)
class OptionalHasElement(_Holder):
    """Whether an optional holds something: a bool without axes."""

    name: ClassVar[str] = "optional_has_element"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        self.held(inputs[0], Type.optional_type, "input 0")
        return Shape(Type.bool_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([len(args[0]) > 0])
