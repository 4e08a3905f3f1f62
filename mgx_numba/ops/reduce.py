"""Reductions over axes, which keep the reduced axes with length 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..core.dim import maximum, minimum
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type, finfo, from_numpy
from ..dataclass import dataclass
from .base import Operator, register
from .dims import packed_like
from .scalar import widened

MOST_ELEMENTS = 2.0**32
"""Most elements that are reduced to one; as float32 they would be 16 GiB."""
DOWN = 1 / MOST_ELEMENTS
"""Scale of elements whose sum overflows. float32 elements below 2**-94 lose bits by it; the largest element then
exceeds 2**96."""


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the accumulator type of the reference: float64 for floats, 64-bit integers for others."""
    if from_numpy(dtype).is_floating:
        return np.dtype(np.float64)
    return np.dtype(np.uint64 if dtype.kind in "ub" else np.int64)


@dataclass(frozen=True)
class ReduceOperator(Operator):
    """Base class of reductions.

    ``axes`` are reduced, all axes if empty. With a second input, which holds the axes at run time, ``axes`` must be
    empty and every length of the result lies between 1 and the input's (an empty list reduces nothing).

    Attributes:
        repeated: effect of n-fold repetition of an element along a reduced axis: "same" (result of one), "times" (n
            times it), "power" (its n-th power), or "" if elements cannot be merged.
        associative: whether reducing the results of parts gives the result of the whole.
    """

    reduction: ClassVar[bool] = True
    repeated: ClassVar[str] = ""
    associative: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()

    def output_type(self, type: Type) -> Type:
        """Return the element type of the result."""
        return type

    @classmethod
    def accumulator_type(cls, type: Type) -> Type:
        """Return the element type in which kernels accumulate: float32 for 16-bit and 8-bit floats."""
        return type.compute

    @classmethod
    def sum_can_overflow(cls, type: Type) -> bool:
        """Return whether this is a mean whose sum may overflow the accumulator although the mean does not."""
        return False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 1, 2)[0]
        type = self.output_type(shape.type)
        if len(inputs) == 2:
            if self.axes:
                raise self.fail(f"axes {list(self.axes)} are given twice, as attribute and as second input")
            return Shape.ranged(type, [DynamicDimension(minimum(1, d.min), maximum(1, d.max)) for d in shape.dims])
        axes = {self.resolve_axis(a, shape.ndim, "axes value") for a in self.axes} or set(range(shape.ndim))
        if shape.is_dynamic:
            one = DynamicDimension(1, 1)
            return Shape.dynamic(type, [one if a in axes else d for a, d in enumerate(shape.dims)])
        return packed_like(shape, [1 if a in axes else n for a, n in enumerate(shape.lens)]).with_type(type)

    def with_values(self, inputs: Sequence[Shape], values: Sequence[np.ndarray]) -> Operator | None:
        axes = tuple(int(a) for a in values[0].reshape(-1))
        return self.with_attributes(axes=axes) if axes else None

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        if len(args) == 2:
            named = {self.resolve_axis(int(a), x.ndim, "axes value") for a in args[1].reshape(-1)}
        else:
            named = {a % x.ndim for a in self.axes} or set(range(x.ndim))
        axes = tuple(sorted(named))
        again = {a for a in axes if x.strides[a] == 0 and x.shape[a] > 1} if self.repeated else set()
        count = prod(x.shape[a] for a in again)
        if again:
            x = x[tuple(slice(1) if a in again else slice(None) for a in range(x.ndim))]
        with np.errstate(all="ignore"):
            result = np.asarray(self.reduce(x, axes))
            if self.repeated == "times" and again:
                result = result * result.dtype.type(count)
            elif self.repeated == "power" and again:
                result = np.power(result, result.dtype.type(count))
        return result.astype(output.type.numpy, copy=False)

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Return the reduced array; reduced axes have length 1."""
        raise NotImplementedError

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements


@register
@dataclass(frozen=True)
class ReduceSum(ReduceOperator):
    """Sum; 0 over no elements."""

    name: ClassVar[str] = "reduce_sum"
    repeated: ClassVar[str] = "times"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.sum(axes, accumulator(x.dtype), keepdims=True)


@register
@dataclass(frozen=True)
class ReduceMean(ReduceOperator):
    """Arithmetic mean; integers divide toward zero, the mean of no elements is NaN (0 for integers)."""

    name: ClassVar[str] = "reduce_mean"
    repeated: ClassVar[str] = "same"
    associative: ClassVar[bool] = False

    @classmethod
    def accumulator_type(cls, type: Type) -> Type:
        """Return the accumulator type of sums; integers use 64 bits."""
        if type.is_floating:
            return type.compute
        return Type.uint64_type if type is Type.uint64_type else Type.int64_type

    @classmethod
    def sum_can_overflow(cls, type: Type) -> bool:
        """Return whether `MOST_ELEMENTS` of the largest number overflow the accumulator."""
        if not type.is_floating:
            return False
        largest, limit = (float(finfo(t.numpy).max) for t in (type, cls.accumulator_type(type)))
        return largest * MOST_ELEMENTS > limit

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        total = x.sum(axes, accumulator(x.dtype), keepdims=True)
        count = prod(x.shape[a] for a in axes)
        if total.dtype.kind == "f":
            return total / count if count else np.full_like(total, np.nan)
        if not count:
            return np.zeros_like(total)
        return (
            np.sign(total) * (np.abs(total) // count) if total.dtype.kind == "i" else total // total.dtype.type(count)
        )


@register
@dataclass(frozen=True)
class ReduceProd(ReduceOperator):
    """Product; 1 over no elements."""

    name: ClassVar[str] = "reduce_prod"
    repeated: ClassVar[str] = "power"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.prod(axes, accumulator(x.dtype), keepdims=True)


def _extreme(x: np.ndarray, axes: tuple[int, ...], function: Callable[..., np.ndarray], empty: float) -> np.ndarray:
    """Return the extreme element (NaN if there is one); over no elements the type's lowest or highest value."""
    if prod(x.shape[a] for a in axes) == 0:
        lens = [1 if a in axes else n for a, n in enumerate(x.shape)]
        kind = from_numpy(x.dtype)
        if kind is Type.bool_type:
            return np.full(lens, empty > 0)
        if kind.is_floating:
            return np.full(lens, empty, np.float32).astype(x.dtype)
        info = np.iinfo(x.dtype)
        return np.full(lens, info.max if empty > 0 else info.min, x.dtype)
    return function(widened(x), axis=axes, keepdims=True)


@register
@dataclass(frozen=True)
class ReduceMax(ReduceOperator):
    """Largest element; NaN if one is NaN, the lowest value (-infinity for floats) over no elements."""

    name: ClassVar[str] = "reduce_max"
    repeated: ClassVar[str] = "same"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return _extreme(x, axes, np.max, -np.inf)


@register
@dataclass(frozen=True)
class ReduceMin(ReduceOperator):
    """Smallest element; NaN if one is NaN, the highest value (infinity for floats) over no elements."""

    name: ClassVar[str] = "reduce_min"
    repeated: ClassVar[str] = "same"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return _extreme(x, axes, np.min, np.inf)


@dataclass(frozen=True)
class _TruthReduction(ReduceOperator):
    """A reduction to bools."""

    repeated: ClassVar[str] = "same"

    def output_type(self, type: Type) -> Type:
        return Type.bool_type

    @classmethod
    def accumulator_type(cls, type: Type) -> Type:
        """Bool."""
        return Type.bool_type


@register
@dataclass(frozen=True)
class ReduceAny(_TruthReduction):
    """Whether some element is not zero, as bool."""

    name: ClassVar[str] = "reduce_any"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return (x != 0).any(axes, keepdims=True)


@register
@dataclass(frozen=True)
class ReduceAll(_TruthReduction):
    """Whether all elements are not zero, as bool."""

    name: ClassVar[str] = "reduce_all"

    def reduce(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return (x != 0).all(axes, keepdims=True)


@dataclass(frozen=True)
class ArgReduction(Operator):
    """Position along ``axis`` (int64) of the extreme element; of equal ones the first, or the last."""

    reduction: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    find: ClassVar[Callable[..., Any]]
    axis: int = 0
    select_last_index: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        axis = self.resolve_axis(self.axis, inputs[0].ndim)
        dims = inputs[0].dims
        others = (*dims[:axis], *dims[axis + 1 :])
        if dims[axis].max == 0 and all(d.max for d in others):
            raise self.fail(f"axis {axis} of {inputs[0]} is empty")
        return Shape.dynamic(Type.int64_type, [*dims[:axis], DynamicDimension(1, 1), *dims[axis + 1 :]])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = widened(args[0])
        if not x.size:
            return np.empty(output.lens, np.int64)
        find = self.find
        if not self.select_last_index:
            return find(x, self.axis, keepdims=True).astype(np.int64)
        return x.shape[self.axis] - 1 - find(np.flip(x, self.axis), self.axis, keepdims=True).astype(np.int64)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements


@register
@dataclass(frozen=True)
class ArgMax(ArgReduction):
    """Position of the largest element along ``axis``."""

    name: ClassVar[str] = "argmax"
    find: ClassVar[Callable[..., Any]] = staticmethod(np.argmax)


@register
@dataclass(frozen=True)
class ArgMin(ArgReduction):
    """Position of the smallest element along ``axis``."""

    name: ClassVar[str] = "argmin"
    find: ClassVar[Callable[..., Any]] = staticmethod(np.argmin)
