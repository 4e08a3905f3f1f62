"""Broadcasts: views whose new or stretched axes have stride 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape, common_lens
from ..core.strided import Strided
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, broadcast_dims, broadcast_lens, broadcast_shape, meet_dim


@register
@dataclass(frozen=True)
class Broadcast(Operator):
    """Broadcast the input to a tensor of higher rank; the input's first axis becomes axis ``axis`` of the result.

    The result has the lengths of the second input if there is one, else ``out_lens`` or ``out_dyn_dims``.
    """

    name: ClassVar[str] = "broadcast"
    view: ClassVar[bool] = True
    axis: int = 0
    out_lens: tuple[int, ...] = ()
    out_dyn_dims: tuple[DynamicDimension, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 1, 2)[0]
        target = _target(self, inputs)
        if not 0 <= self.axis < max(len(target), 1):
            raise self.fail(f"axis {self.axis} is out of range for {len(target)} dimensions")
        if self.axis + shape.ndim > len(target):
            raise self.fail(f"{shape.ndim} axes at axis {self.axis} do not fit into {len(target)} dimensions")
        for k, own in enumerate(shape.dims):
            meet_dim(self, f"lengths of input axis {k} and output axis {self.axis + k}", own, target[self.axis + k])
        if shape.is_dynamic or not all(d.is_fixed for d in target):
            return Shape.dynamic(shape.type, target)
        strides = [0] * len(target)
        strides[self.axis : self.axis + shape.ndim] = shape.strides
        return Shape.view(shape.type, [d.min for d in target], strides)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        lens = args[1].shape if output.is_dynamic and len(args) == 2 else output.lens
        x = args[0]
        return np.broadcast_to(x.reshape(x.shape + (1,) * (len(lens) - self.axis - x.ndim)), lens)

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        behind = output.ndim - self.axis - len(source.lens)
        lens, strides = (*source.lens, *[1] * behind), (*source.strides, *[0] * behind)
        return Strided(lens, strides, source.offset).broadcast(output.lens)


@register
@dataclass(frozen=True)
class Multibroadcast(Operator):
    """The input broadcast (NumPy's rule) to ``out_lens``, or to the common lengths of all inputs."""

    name: ClassVar[str] = "multibroadcast"
    view: ClassVar[bool] = True
    out_lens: tuple[int, ...] = ()
    out_dyn_dims: tuple[DynamicDimension, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        if not inputs:
            raise self.fail("got no input")
        shape = inputs[0]
        if len(inputs) > 1:
            if any_dynamic(inputs):
                return Shape.dynamic(shape.type, broadcast_dims(self, *inputs))
            return broadcast_shape(self, shape, broadcast_lens(self, *(s.lens for s in inputs)))
        if not shape.is_dynamic and not self.out_dyn_dims:
            return broadcast_shape(self, shape, self.out_lens)
        target = _target(self, inputs)
        if shape.is_dynamic or not all(d.is_fixed for d in target):
            return Shape.dynamic(shape.type, broadcast_dims(self, shape, Shape.dynamic(shape.type, target)))
        return broadcast_shape(self, shape, [d.min for d in target])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        lens = common_lens(*(a.shape for a in args)) if len(args) > 1 else output.lens
        return np.broadcast_to(args[0], lens)

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        return source.broadcast(output.lens)


@register
@dataclass(frozen=True)
class BroadcastWithDims(Operator):
    """The first input broadcast against the lengths that the second input holds, at run time."""

    name: ClassVar[str] = "broadcast_with_dims"
    view: ClassVar[bool] = True

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape, dims = self.expect_inputs(inputs, 2)
        if dims.is_dynamic or dims.ndim != 1 or not dims.type.is_integral:
            raise self.fail(f"second input must be a vector of integers of fixed length, got {dims}")
        rank = max(shape.ndim, dims.lens[0])
        return Shape.dynamic(shape.type, [DynamicDimension(0, UNBOUNDED)] * rank)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, dims = args
        if min(dims.tolist(), default=0) < 0:
            raise self.fail(f"lengths {dims.tolist()} hold a negative number")
        shape = Shape(output.type, broadcast_lens(self, x.shape, dims.tolist()))  # refuses lengths beyond all memory
        return np.broadcast_to(x, shape.lens)

    def with_values(self, inputs: Sequence[Shape], values: Sequence[np.ndarray]) -> Operator:
        return Multibroadcast(broadcast_lens(self, inputs[0].lens, values[0].tolist()))


@register
@dataclass(frozen=True)
class BroadcastForDot(Operator):
    """The first input with its axes before the last two broadcast against the second input's."""

    name: ClassVar[str] = "broadcast_for_dot"
    view: ClassVar[bool] = True

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        a, b = self.expect_inputs(inputs, 2)
        if min(a.ndim, b.ndim) < 2:
            raise self.fail(f"inputs need at least 2 axes, got {a} and {b}")
        if any_dynamic(inputs):
            outer = [Shape.ranged(a.type, s.dims[:-2]) for s in inputs]
            return Shape.dynamic(a.type, broadcast_dims(self, *outer) + a.dims[-2:])
        return broadcast_shape(self, a, broadcast_lens(self, a.lens[:-2], b.lens[:-2]) + a.lens[-2:])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        a, b = args
        return np.broadcast_to(a, common_lens(a.shape[:-2], b.shape[:-2]) + a.shape[-2:])


@register
@dataclass(frozen=True)
class Scalar(Operator):
    """A one-element input seen with the lengths ``scalar_bcst_dims``, all strides 0."""

    name: ClassVar[str] = "scalar"
    view: ClassVar[bool] = True
    scalar_bcst_dims: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].is_dynamic or inputs[0].elements != 1:
            raise self.fail(f"input must have one element, got {inputs[0]}")
        if not self.scalar_bcst_dims:
            raise self.fail("scalar_bcst_dims is empty, expected the lengths of the result")
        return Shape.view(inputs[0].type, self.scalar_bcst_dims, [0] * len(self.scalar_bcst_dims))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(args[0].reshape(()), output.lens)

    def viewed(self, output: Shape, source: Strided, inputs: Sequence[Shape]) -> Strided | None:
        return Strided((), (), source.offset).broadcast(output.lens)


def _target(op: Broadcast | Multibroadcast, inputs: Sequence[Shape]) -> tuple[DynamicDimension, ...]:
    """Return the lengths of a broadcast's result."""
    if len(inputs) == 2:
        return inputs[1].dims
    if op.out_dyn_dims:
        return op.out_dyn_dims
    return tuple(DynamicDimension(n, n) for n in op.out_lens)
