"""Operators around positions and distinct values: one-hot, non-zero, unique, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.counted_elements import evenly_spaced
from ..core.dim import Length, known_less, minimum
from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register


@register
@dataclass(frozen=True)
class OneHot(Operator):
    """A new axis of the result that holds ``values[1]`` at the index and ``values[0]`` elsewhere.

    Inputs are indices, depth, values; or indices and values with the depth as attribute. Negative indices
    count from the end; those out of range give ``values[0]`` everywhere.
    """

    name: ClassVar[str] = "onehot"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = -1
    depth: int | None = None

    def axes_rank(self, inputs: Sequence[Shape]) -> int:
        """``axis`` counts the axes of the output."""
        return inputs[0].ndim + 1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 3 if self.depth is None else 2)
        indices, values = inputs[0], inputs[-1]
        if values.is_dynamic or values.elements != 2:
            raise self.fail(f"values must be two elements (off, on), got {values}")
        if self.depth is None:
            if inputs[1].is_dynamic or inputs[1].elements != 1:
                raise self.fail(f"depth must be one element, got {inputs[1]}")
            new = DynamicDimension(0, UNBOUNDED)
        elif self.depth < 0:
            raise self.fail(f"depth must not be negative, got {self.depth}")
        else:
            new = DynamicDimension(self.depth, self.depth)
        axis = self.resolve_axis(self.axis, indices.ndim + 1)
        return Shape.dynamic(values.type, [*indices.dims[:axis], new, *indices.dims[axis:]])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        indices, values = args[0], args[-1].reshape(-1)
        depth = int(args[1].reshape(-1)[0]) if self.depth is None else self.depth
        if depth < 0:
            raise self.fail(f"depth must not be negative, got {depth}")
        axis = self.axis % (indices.ndim + 1)
        wide = indices.astype(np.int64)
        wide = np.expand_dims(np.where(wide < 0, wide + depth, wide), axis)
        position = np.arange(depth).reshape([-1 if k == axis else 1 for k in range(wide.ndim)])
        return np.where(wide == position, values[1:], values[:1])


MOST_COUNTED = 1 << 27
"""Most elements (1 GiB) that a counted result has room for. Memory that is not used costs nothing, but more of it than
the machine has may be refused."""


def counted_form(
    op: Operator, inputs: Sequence[Shape], lens: list[tuple[int, ...]]
) -> tuple[Operator, list[tuple[int, ...]]] | None:
    """Return what `Operator.counted` returns for an operator with an attribute ``counts``: None also if the result may
    have more than `MOST_COUNTED` elements."""
    if any(s.is_dynamic or s.type.hosted for s in inputs):
        return None
    form = op.with_attributes(counts=True)
    room = form.compute_shape(inputs).sub_shapes[0].elements
    return None if known_less(MOST_COUNTED, room) else (form, lens)


def counted_shape(room: Length) -> Shape:
    """Return the shape of a result with room for ``room`` int64 elements and its length; see `Operator.counted`."""
    return Shape.tuple([Shape(Type.int64_type, (room,)), Shape(Type.int64_type, (1,))])  # type: ignore[arg-type]


def counted_value(output: Shape, found: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a result of shape `counted_shape` that holds the elements of ``found``, then zeros."""
    room = output.sub_shapes[0].lens[0]
    return np.pad(found.reshape(-1), (0, room - found.size)), np.array([length], np.int64)


@register
@dataclass(frozen=True)
class NonZero(Operator):
    """Positions of the elements that are not zero, in row-major order: int64 [rank, count].

    The result has room for every element and zeros after the last position; with ``use_dyn_output`` it has
    just the columns found. With ``counts`` it is a tuple, see `Operator.counted`.
    """

    name: ClassVar[str] = "nonzero"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("counts",)
    use_dyn_output: bool = False
    counts: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if self.counts:
            return counted_shape(shape.ndim * shape.elements)
        if self.use_dyn_output:
            return Shape.dynamic(Type.int64_type, [shape.ndim, DynamicDimension(0, shape.elements)])
        if shape.is_dynamic:
            raise self.fail(f"needs static lengths without use_dyn_output, got {shape}")
        return Shape(Type.int64_type, (shape.ndim, shape.elements))

    def counted(self, inputs: Sequence[Shape]) -> tuple[Operator, list[tuple[int, ...]]] | None:
        return counted_form(self, inputs, [(inputs[0].ndim, -1)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        found = np.array(np.nonzero(args[0]), np.int64)
        if self.counts:
            return counted_value(output, found, found.shape[1])
        if self.use_dyn_output:
            return found
        return np.pad(found, ((0, 0), (0, output.lens[1] - found.shape[1])))


@register
@dataclass(frozen=True)
class Unique(Operator):
    """Distinct elements, or distinct slices along ``axis``; sorted, or in order of first appearance.

    The result is a tuple: the values, the position of the first appearance of each, for each element the
    position of its value, and the number of appearances of each (int64). How many there are is known at run
    time only. Without ``equal_nan`` each NaN is a value of its own. With ``counts`` the tuple has the number of values
    as its last member, see `Operator.counted`.
    """

    name: ClassVar[str] = "unique"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("equal_nan", "counts")
    axis: int | None = None
    sorted: bool = True
    equal_nan: bool = True
    counts: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if self.counts:
            flat, number = (Shape(t, (shape.elements,)) for t in (shape.type, Type.int64_type))
            return Shape.tuple([flat, number, number, number, Shape(Type.int64_type, (1,))])
        if self.axis is None:
            length = DynamicDimension(prod(d.min for d in shape.dims), shape.elements)
            outer: tuple[DynamicDimension, ...] = ()
            inner: tuple[DynamicDimension, ...] = ()
        else:
            axis = self.resolve_axis(self.axis, shape.ndim)
            length, outer, inner = shape.dims[axis], shape.dims[:axis], shape.dims[axis + 1 :]
        count = DynamicDimension(minimum(1, length.min), length.max)
        number, inverse = (Shape.dynamic(Type.int64_type, [d]) for d in (count, length))
        return Shape.tuple([Shape.dynamic(shape.type, [*outer, count, *inner]), number, inverse, number])

    def counted(self, inputs: Sequence[Shape]) -> tuple[Operator, list[tuple[int, ...]]] | None:
        """Return the form for distinct elements; distinct slices have none."""
        if self.axis is not None and inputs[0].ndim != 1:
            return None
        elements = self.with_attributes(axis=None)
        return counted_form(elements, inputs, [(-1,), (-1,), (inputs[0].elements,), (-1,)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        x = args[0]
        axis = 0 if self.axis is None else self.axis
        if self.axis is None or x.ndim == 1:
            x = x.reshape(-1)
            _, first, inverse, counts = np.unique(
                x, return_index=True, return_inverse=True, return_counts=True, equal_nan=self.equal_nan
            )
        else:
            rows = np.moveaxis(x, axis, 0)
            first, inverse, counts = _distinct(rows.reshape(len(rows), prod(rows.shape[1:])), self.equal_nan)
        if not self.sorted:
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            first, inverse, counts = first[order], rank[inverse], counts[order]
        found = np.take(x, first, axis)
        results = (found, *(v.astype(np.int64) for v in (first, inverse, counts)))
        if not self.counts:
            return results
        return (*(np.pad(v, (0, x.size - v.size)) for v in results), np.array([found.size], np.int64))


SORTED_TOGETHER = 8
"""Columns by which rows are sorted before their remaining columns are read only if rows are still equal. Zen 4, 3000
rows of 50 int64, us: by 4 columns 1690, by 8 1710, by 16 1520, by all 4320."""


def _distinct(rows: np.ndarray, equal_nan: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, in the order of distinct rows, their first positions and numbers of appearances, second the position of
    each row's value."""
    number = np.zeros(len(rows), np.int64)
    order, is_first = np.arange(len(rows)), np.arange(len(rows)) == 0
    for begin in range(0, rows.shape[1], SORTED_TOGETHER):
        columns = np.ascontiguousarray(rows[:, begin : begin + SORTED_TOGETHER].T)
        order = np.lexsort((*columns[::-1], number))
        a, b = columns[:, order[1:]], columns[:, order[:-1]]
        differ = a != b
        if equal_nan:
            differ &= (a == a) | (b == b)
        is_first[1:] = differ.any(0) | (np.diff(number[order]) > 0)
        number[order] = np.cumsum(is_first) - 1
        if is_first.all():
            break
    starts = np.flatnonzero(is_first)
    return order[starts], number, np.diff(starts, append=len(rows))


@register
@dataclass(frozen=True)
class DynamicRange(Operator):
    """``start, start + delta, ...`` up to before ``limit``; the inputs are three scalars of one type."""

    name: ClassVar[str] = "dynamic_range"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 3)
        self.expect_same_type(inputs)
        if any(s.is_dynamic or s.elements != 1 for s in inputs):
            raise self.fail(f"inputs must be scalars, got {'; '.join(map(str, inputs))}")
        return Shape.dynamic(inputs[0].type, [DynamicDimension(0, UNBOUNDED)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return evenly_spaced(*args)
