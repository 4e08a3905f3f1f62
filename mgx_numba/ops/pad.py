"""Padding."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from .base import Operator, register, register_enum
from .dims import packed_like
from .scalar import cast_array


@register_enum
class PadMode(IntEnum):
    """Padding mode: a constant, the mirror image without the edge, the edge, or the opposite end."""

    constant = 0
    reflect = 1
    edge = 2
    wrap = 3


@register
@dataclass(frozen=True)
class Pad(Operator):
    """``pads`` elements added before each axis, then after each axis (ONNX order); negative values cut.

    Strings that are added are empty. ``value`` is an integer where no float64 is equal to it.
    """

    name: ClassVar[str] = "pad"
    mode: PadMode = PadMode.constant
    pads: tuple[int, ...] = ()
    value: float | int = 0.0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        rank = shape.ndim
        if len(self.pads) != 2 * rank:
            raise self.fail(f"pads {list(self.pads)} needs {2 * rank} values for {shape}")
        added = [self.pads[k] + self.pads[k + rank] for k in range(rank)]
        dims = shape.dims
        for k, d in enumerate(dims):
            if d.max + added[k] < 0:
                raise self.fail(f"pads {list(self.pads)} cut more than axis {k} of {shape} has")
            if self.mode is not PadMode.constant and added[k] > 0 and d.max == 0:
                raise self.fail(f"axis {k} of {shape} is empty: {self.mode.name} has nothing to copy")
        if shape.is_dynamic:
            ranges = [DynamicDimension(max(0, d.min + n), d.max + n) for d, n in zip(dims, added)]
            return Shape.dynamic(shape.type, ranges)
        return packed_like(shape, [n + extra for n, extra in zip(shape.lens, added)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, rank = args[0], args[0].ndim
        if self.mode is not PadMode.constant:
            for axis in range(rank):
                x = np.take(x, self.positions(x.shape[axis], self.pads[axis], self.pads[axis + rank]), axis)
            return x
        result = np.full(output.lens, self.filling(from_numpy(x.dtype)), x.dtype)
        source, target = [], []
        for n, before, total in zip(x.shape, self.pads, output.lens):
            start, stop = max(0, before), max(0, min(total, before + n))
            target.append(slice(start, max(start, stop)))
            source.append(slice(start - before, max(start, stop) - before))
        result[tuple(target)] = x[tuple(source)]
        return result

    def filling(self, type: Type) -> np.ndarray:
        """Return ``value`` as an array without axes, of an element type."""
        if type.holds_objects:
            return np.array("", object)
        return cast_array(np.asarray(self.value), type)

    def positions(self, length: int, before: int, after: int) -> np.ndarray:
        """Input position of every output position along an axis."""
        position = np.arange(-before, length + after)
        if self.mode is PadMode.edge or length == 1:
            return np.clip(position, 0, length - 1)
        if self.mode is PadMode.wrap:
            return position % length
        period = 2 * (length - 1)
        position = position % period
        return np.minimum(position, period - position)


@register
@dataclass(frozen=True)
class FixedPad(Operator):
    """The input followed by zeros up to ``output_lens`` on each axis."""

    name: ClassVar[str] = "fixed_pad"
    output_lens: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if len(self.output_lens) != shape.ndim or any(d.min > n for d, n in zip(shape.dims, self.output_lens)):
            raise self.fail(f"{shape} does not fit into lengths {list(self.output_lens)}")
        return Shape(shape.type, self.output_lens)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        result = np.zeros(output.lens, output.type.numpy)
        result[tuple(map(slice, args[0].shape))] = args[0]
        return result
