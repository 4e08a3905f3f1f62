"""Local response normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register


@register
@dataclass(frozen=True)
class Lrn(Operator):
    """``x / (bias + alpha / size * s) ** beta``, s the sum of squares over ``size`` channels (ONNX LRN).

    The neighbourhood of channel c runs from ``c - (size - 1) // 2`` to ``c + size // 2``, cut at the ends.
    """

    name: ClassVar[str] = "lrn"
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0
    size: int = 1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].ndim < 2:
            raise self.fail(f"input needs a channel axis (axis 1), got {inputs[0]}")
        if self.size < 1:
            raise self.fail(f"size must be positive, got {self.size}")
        return inputs[0] if inputs[0].is_dynamic or inputs[0].packed else inputs[0].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0].astype(np.float64)
        channels = x.shape[1]
        square, squares = x * x, np.zeros_like(x)
        for step in range(max(-((self.size - 1) // 2), 1 - channels), min(self.size // 2, channels - 1) + 1):
            behind, ahead = max(-step, 0), max(step, 0)
            squares[:, behind : channels - ahead] += square[:, ahead : channels - behind]
        return (x / (self.bias + self.alpha / self.size * squares) ** self.beta).astype(output.type.numpy)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return output.elements * (self.size + 3)
