"""Operators whose results depend on symbolic lengths alone: a plan computes them once it is bound to lengths."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dim import Dim
from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register


@register
@dataclass(frozen=True)
class Lengths(Operator):
    """The int64 tensor of lengths ``lens`` (none: a scalar) that holds ``values``, which may be symbolic lengths."""

    name: ClassVar[str] = "lengths"
    values: tuple[int, ...] = ()
    lens: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0)
        if any(isinstance(n, Dim) for n in self.lens) or prod(self.lens) != len(self.values):
            raise self.fail(f"lens {list(self.lens)} do not fit {len(self.values)} values")
        return Shape(Type.int64_type, self.lens or None)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.array(self.values, np.int64).reshape(output.lens)


@register
@dataclass(frozen=True)
class Iota(Operator):
    """The int64 vector ``0, 1, ... length - 1``; its length may be symbolic."""

    name: ClassVar[str] = "iota"
    length: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 0)
        return Shape(Type.int64_type, (self.length,))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.arange(output.lens[0], dtype=np.int64)
