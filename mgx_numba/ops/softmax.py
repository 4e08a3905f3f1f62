"""Softmax, its logarithm, and running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register
from .dims import packed_like
from .reduce import accumulator
from .scalar import widened


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Return ``exp(x - max) / sum(exp(x - max))`` along an axis, in the type of ``x``; all -infinity gives NaN."""
    if x.size == 0:
        return x.copy()
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


@dataclass(frozen=True)
class _AlongAxis(Operator):
    """Operator that keeps lengths and type and couples the elements along ``axis``."""

    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        self.resolve_axis(self.axis, shape.ndim)
        return shape if shape.is_dynamic or shape.packed else packed_like(shape, shape.lens)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 5 * output.elements


@register
@dataclass(frozen=True)
class Softmax(_AlongAxis):
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``, computed in float32 or wider."""

    name: ClassVar[str] = "softmax"

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = widened(args[0])
        return softmax(x, self.axis).astype(output.type.numpy, copy=False)


@register
@dataclass(frozen=True)
class LogSoftmax(_AlongAxis):
    """``x - max - log(sum(exp(x - max)))`` along ``axis``, computed in float32 or wider."""

    name: ClassVar[str] = "logsoftmax"

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = widened(args[0])
        if x.size:
            with np.errstate(all="ignore"):
                x = x - x.max(self.axis, keepdims=True)
                x = x - np.log(np.exp(x).sum(self.axis, keepdims=True))
        return x.astype(output.type.numpy, copy=False)


@register
@dataclass(frozen=True)
class PrefixScanSum(_AlongAxis):
    """ONNX CumSum along ``axis``: ``exclusive`` leaves out the element, ``reverse`` sums from the end."""

    name: ClassVar[str] = "prefix_scan_sum"
    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = np.flip(args[0], self.axis) if self.reverse else args[0]
        total = np.cumsum(x, self.axis, accumulator(x.dtype))
        if self.exclusive:
            total = np.roll(total, 1, self.axis)
            first = [slice(None)] * x.ndim
            first[self.axis] = slice(0, 1)
            total[tuple(first)] = 0
            total += 0  # sums begin with 0: -0 is added to it
        total = np.flip(total, self.axis) if self.reverse else total
        return total.astype(output.type.numpy)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return output.elements
