"""Views that permute, split, merge or drop axes without touching memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.strided import Strided
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import may_be


@register
@dataclass(frozen=True)
class Transpose(Operator):
    """Axes in another order: output axis ``k`` is input axis ``permutation[k]``."""

    name: ClassVar[str] = "transpose"
    view: ClassVar[bool] = True
    permutation: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if sorted(self.permutation) != list(range(shape.ndim)):
            raise self.fail(f"permutation {list(self.permutation)} does not order the {shape.ndim} axes of {shape}")
        if shape.is_dynamic:
            return Shape.dynamic(shape.type, [shape.dims[p] for p in self.permutation])
        lens, strides = ([values[p] for p in self.permutation] for values in (shape.lens, shape.strides))
        return Shape.view(shape.type, lens, strides)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.transpose(args[0], self.permutation)

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        return source.transpose(*self.permutation)


@register
@dataclass(frozen=True)
class Squeeze(Operator):
    """Axes of length 1 removed: those in ``axes``, or all. Without any axis left the result is a scalar."""

    name: ClassVar[str] = "squeeze"
    view: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        axes = {self.resolve_axis(a, shape.ndim, "axes value") for a in self.axes}
        for a in sorted(axes):
            if not may_be(shape.dims[a], 1):
                raise self.fail(f"axis {a} of {shape} has length {shape.dims[a]}, expected 1")
        if not axes:
            axes = {a for a, d in enumerate(shape.dims) if d == DynamicDimension(1, 1)}
        kept = [a for a in range(shape.ndim) if a not in axes]
        if not kept:
            return Shape(shape.type)
        if shape.is_dynamic:
            return Shape.dynamic(shape.type, [shape.dims[a] for a in kept])
        return Shape.view(shape.type, [shape.lens[a] for a in kept], [shape.strides[a] for a in kept])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        axes = tuple(self.axes) or tuple(a for a, n in enumerate(x.shape) if n == 1)
        result = np.squeeze(x, axes)
        return result.reshape(output.lens) if result.ndim == 0 else result


@register
@dataclass(frozen=True)
class Unsqueeze(Operator):
    """New axes at the output positions ``axes``: of length 1, or ``steps[k]`` cut from the next axis.

    A scalar input (lengths ``{1}``, stride 0) counts as having no axes, if ``axes`` allow it. Example:
    lengths {3, 4, 10}, axes {2}, steps {2} give {3, 4, 2, 5}.
    """

    name: ClassVar[str] = "unsqueeze"
    view: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def axes_rank(self, inputs: Sequence[Shape]) -> int:
        """Return the output's rank, to which axes refer."""
        shape, count = inputs[0], len(self.axes)
        as_scalar = shape.without_axes and all(-count <= a < count for a in self.axes)
        return count if as_scalar else shape.ndim + count

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        rank = self.axes_rank(inputs)
        axes = [self.resolve_axis(a, rank, "axes value") for a in self.axes]
        if len(set(axes)) != len(axes):
            raise self.fail(f"axes {list(self.axes)} repeat an axis")
        if len(self.steps) > len(axes):
            raise self.fail(f"{len(self.steps)} steps were given for {len(axes)} axes")
        steps = dict(zip(axes, self.steps))
        if shape.is_dynamic:
            if self.steps:
                raise self.fail(f"steps need static lengths, got {shape}")
            rest = iter(shape.dims)
            one = DynamicDimension(1, 1)
            return Shape.dynamic(shape.type, [one if k in axes else next(rest) for k in range(rank)])
        if rank == len(axes):
            if any(step != 1 for step in steps.values()):
                raise self.fail(f"a scalar cannot be cut into steps {list(self.steps)}")
            return Shape(shape.type, [1] * rank)
        return self._static(shape, rank, set(axes), steps)

    def _static(self, shape: Shape, rank: int, axes: set[int], steps: dict[int, int]) -> Shape:
        old = list(shape.lens)
        lens, strides, position = [], [], 0
        for k in range(rank):
            if k not in axes:
                lens.append(old[position])
                strides.append(shape.strides[position])
                position += 1
                continue
            step = steps.get(k, 1)
            if position == len(old):
                if step != 1:
                    raise self.fail(f"step {step} at axis {k} has no axis after it to cut")
                strides.append(1)
            else:
                if step < 1 or old[position] % step:
                    raise self.fail(f"step {step} does not divide length {old[position]} of input axis {position}")
                old[position] //= step
                strides.append(shape.strides[position] * old[position])
            lens.append(step)
        return Shape(shape.type, lens, strides)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return args[0].reshape(output.lens)


SCALAR = Shape(Type.float_type)


@register
@dataclass(frozen=True)
class AsShape(Operator):
    """A standard input's memory seen through ``shape``, which must have as many elements."""

    name: ClassVar[str] = "as_shape"
    view: ClassVar[bool] = True
    shape: Shape = SCALAR

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (source,) = self.expect_inputs(inputs, 1)
        if source.type is not self.shape.type or source.elements != self.shape.elements:
            raise self.fail(f"{source} cannot be seen as {self.shape}: type or number of elements differ")
        if not source.standard or self.shape.element_space > source.element_space:
            raise self.fail(f"{source} is not standard, or has less memory than {self.shape}")
        return self.shape

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        flat = np.ascontiguousarray(args[0]).reshape(-1)
        strides = [s * flat.itemsize for s in output.strides]
        return np.lib.stride_tricks.as_strided(flat, output.lens, strides)


@register
@dataclass(frozen=True)
class BitCast(Operator):
    """The same bits read as another element type of equal size."""

    name: ClassVar[str] = "bit_cast"
    view: ClassVar[bool] = True
    target_type: Type = Type.half_type

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        source = inputs[0].type
        if source.size != self.target_type.size:
            raise self.fail(
                f"{source.name} has {source.size} bytes, {self.target_type.name} has {self.target_type.size}"
            )
        return inputs[0].with_type(self.target_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return args[0].view(self.target_type.numpy)


@register
@dataclass(frozen=True)
class DimensionsOf(Operator):
    """The input's lengths from axis ``start`` to before axis ``end``, as int64."""

    name: ClassVar[str] = "dimensions_of"
    start: int = 0
    end: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if not 0 <= self.start < self.end <= inputs[0].ndim:
            raise self.fail(f"axes {self.start} to {self.end} are not a range of the {inputs[0].ndim} axes")
        return Shape(Type.int64_type, [self.end - self.start])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.array(args[0].shape[self.start : self.end], np.int64)


@register
@dataclass(frozen=True)
class Flatten(Operator):
    """A matrix: the axes before ``axis`` as rows, the others as columns."""

    name: ClassVar[str] = "flatten"
    axis: int = 1

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        """Return the operator with a non-negative ``axis``, which may be the rank."""
        return self.with_attributes(axis=self._split(inputs[0].ndim))

    def _split(self, rank: int) -> int:
        if not -rank <= self.axis <= rank:
            raise self.fail(f"axis {self.axis} is out of range for {rank} dimensions")
        return self.axis + rank if self.axis < 0 else self.axis

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        split = self._split(shape.ndim)
        halves = shape.dims[:split], shape.dims[split:]
        return Shape.dynamic(
            shape.type, [DynamicDimension(prod(d.min for d in h), prod(d.max for d in h)) for h in halves]
        )

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return args[0].reshape(output.lens)
