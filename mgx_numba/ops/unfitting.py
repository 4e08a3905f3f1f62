"""Placeholder for a branch's results if the lengths of its inputs are invalid for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from ..errors import ShapeError
from .base import Operator, register

NOTHING = Shape.tuple(())


@register
@dataclass(frozen=True)
class Unfitting(Operator):
    """A value of shape ``result`` that cannot be computed, because of ``reason``; computing it raises.

    A program is specialised for lengths (`graph.specialize`) before it is known which branches run; this replaces
    instructions that are invalid for these lengths.
    """

    name: ClassVar[str] = "unfitting"
    reason: str = ""
    result: Shape = NOTHING

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return self.result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raise ShapeError(self.reason)
