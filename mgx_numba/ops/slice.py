"""Parts of a tensor along axes: ranges, strides, single positions, reversal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.dim import is_symbolic, maximum
from ..core.integers import slice_bounds
from ..core.shape import DynamicDimension, Shape
from ..core.strided import Strided
from ..dataclass import dataclass
from .base import Operator, register


@register
@dataclass(frozen=True)
class Slice(Operator):
    """Positions ``starts[k]`` to before ``ends[k]`` of axis ``axes[k]``; negative ones count from the end.

    Values beyond the axis are clipped. Attributes that are left empty come as further inputs, one integer
    vector each, in the order starts, ends, axes (2 to 4 inputs); the result's lengths are then known at run
    time only.
    """

    name: ClassVar[str] = "slice"
    view: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        """Return the operator with non-negative axes and, for static lengths, ``0 <= start <= end <= length``."""
        op = super().normalized(inputs)
        if len(inputs) > 1 or inputs[0].is_dynamic:
            return op
        bounds = [
            _clip(start, end, inputs[0].lens[axis])
            for axis, start, end in zip(op.axes, self.starts, self.ends)  # type: ignore[attr-defined]
        ]
        return op.with_attributes(starts=tuple(b[0] for b in bounds), ends=tuple(b[1] for b in bounds))

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 1, 2, 3, 4)[0]
        axes = [self.resolve_axis(a, shape.ndim, "axes value") for a in self.axes]
        if len(set(axes)) != len(axes):
            raise self.fail(f"axes {list(self.axes)} repeat an axis")
        if len(inputs) > 1:
            return self._run_time_shape(inputs, axes)
        if not len(axes) == len(self.starts) == len(self.ends):
            raise self.fail(
                f"axes, starts and ends have {len(axes)}, {len(self.starts)} and {len(self.ends)} values,"
                " expected as many"
            )
        if shape.is_dynamic:
            dims = list(shape.dims)
            for axis, start, end in zip(axes, self.starts, self.ends):
                dims[axis] = _slice_dim(dims[axis], start, end)
            return Shape.dynamic(shape.type, dims)
        lens = list(shape.lens)
        for axis, start, end in zip(axes, self.starts, self.ends):
            low, high = _clip(start, end, lens[axis])
            lens[axis] = high - low
        return Shape.view(shape.type, lens, shape.strides)

    def _run_time_shape(self, inputs: Sequence[Shape], axes: Sequence[int]) -> Shape:
        missing = [n for n in ("starts", "ends", "axes") if not getattr(self, n)]
        if len(inputs) - 1 != len(missing):
            raise self.fail(f"{len(inputs) - 1} inputs after the data, but attributes left empty are {missing}")
        for name, given in zip(missing, inputs[1:]):
            if given.is_dynamic or given.ndim != 1 or not given.type.is_integral:
                raise self.fail(f"input {name} must be a vector of integers of fixed length, got {given}")
        dims = list(inputs[0].dims)
        for axis in axes if self.axes else range(len(dims)):
            dims[axis] = DynamicDimension(0, dims[axis].max)
        return Shape.ranged(inputs[0].type, dims)

    def with_values(self, inputs: Sequence[Shape], values: Sequence[np.ndarray]) -> Operator:
        missing = [n for n in ("starts", "ends", "axes") if not getattr(self, n)]
        return self.with_attributes(**{n: tuple(v.tolist()) for n, v in zip(missing, values)})

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        given = iter(args[1:])
        names = ("starts", "ends", "axes")
        bounds = [getattr(self, n) or (next(given).tolist() if len(args) > 1 else ()) for n in names]
        index = [slice(None)] * x.ndim
        for start, end, axis in zip(*bounds):
            axis = self.resolve_axis(axis, x.ndim, "axes value")
            index[axis] = slice(*_clip(start, end, x.shape[axis]))
        return x[tuple(index)]

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        if len(inputs) > 1:
            return None
        for axis, start, end in zip(self.axes, self.starts, self.ends):
            source = source.slice(axis, *_clip(start, end, source.lens[axis]))
        return source


def _clip(start: int, end: int, length: int) -> tuple[int, int]:
    """Return bounds with ``0 <= start <= end <= length``."""
    low, high = slice_bounds(start, end, length)
    return low, low + maximum(high - low, 0) if is_symbolic(high - low) else max(low, high)


def _slice_dim(dim: DynamicDimension, start: int, end: int) -> DynamicDimension:
    """Return the range of a slice's length; extremes lie at the range's ends or where clipping starts."""

    def length(n: int) -> int:
        low, high = _clip(start, end, n)
        return high - low

    corners = [n for n in (abs(start), abs(end), abs(end - start)) if dim.min <= n <= dim.max]
    found = [length(n) for n in (dim.min, dim.max, *corners)]
    return DynamicDimension(min(found), max(found), frozenset(length(n) for n in dim.optimals))


@register
@dataclass(frozen=True)
class StridedView(Operator):
    """Every ``steps[k]``-th position of each axis ``axes[k]``, from the first one."""

    name: ClassVar[str] = "step"
    view: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if len(self.axes) != len(self.steps) or any(s < 1 for s in self.steps):
            raise self.fail(f"axes {list(self.axes)} need a positive step each, got steps {list(self.steps)}")
        strides = list(shape.strides)
        dims = list(shape.dims)
        for value, step in zip(self.axes, self.steps):
            axis = self.resolve_axis(value, shape.ndim, "axes value")
            d = dims[axis]
            dims[axis] = DynamicDimension(-(-d.min // step), -(-d.max // step))
            if strides:
                strides[axis] *= step
        if shape.is_dynamic:
            return Shape.dynamic(shape.type, dims)
        return Shape.view(shape.type, [d.min for d in dims], strides)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        index = [slice(None)] * args[0].ndim
        for axis, step in zip(self.axes, self.steps):
            index[axis] = slice(None, None, step)
        return args[0][tuple(index)]

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        for axis, step in zip(self.axes, self.steps):
            source = source.slice(axis, 0, source.lens[axis], step)
        return source


@register
@dataclass(frozen=True)
class ScanSlice(Operator):
    """The position along ``axis`` that the second input holds, kept as an axis of length 1.

    With ``direction`` 1 it counts from the end.
    """

    name: ClassVar[str] = "scan_slice"
    view: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 0
    direction: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 2)[0]
        if not shape.ranked or inputs[1].is_dynamic or inputs[1].elements != 1 or not inputs[1].type.is_integral:
            raise self.fail(f"needs data of a known rank and one integer as index, got {shape} and {inputs[1]}")
        if self.direction not in (0, 1):
            raise self.fail(f"direction must be 0 or 1, got {self.direction}")
        axis = self.resolve_axis(self.axis, shape.ndim)
        if shape.is_dynamic:
            one = DynamicDimension(1, 1)
            return Shape.dynamic(shape.type, [one if a == axis else n for a, n in enumerate(shape.dims)])
        return Shape.view(shape.type, [1 if a == axis else n for a, n in enumerate(shape.lens)], shape.strides)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, index = args[0], int(args[1].reshape(-1)[0])
        length = x.shape[self.axis]
        if not 0 <= index < length:
            raise self.bad_index(f"index {index} is out of range for axis {self.axis} of length {length}")
        position = length - 1 - index if self.direction else index
        return np.moveaxis(np.moveaxis(x, self.axis, 0)[position : position + 1], 0, self.axis)


@register
@dataclass(frozen=True)
class Reverse(Operator):
    """Elements in reverse order along ``axes``."""

    name: ClassVar[str] = "reverse"
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        for value in self.axes:
            self.resolve_axis(value, inputs[0].ndim, "axes value")
        return inputs[0].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.flip(args[0], self.axes)

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        return source.flip(*self.axes)
