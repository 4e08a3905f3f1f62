"""Placeholder for an unknown operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from ..errors import UnsupportedError
from .base import Operator, register


@register
@dataclass(frozen=True)
class Unknown(Operator):
    """An unknown model operator named ``operator``, created by ``parse_onnx(skip_unknown_operators=True)``.

    Its shape is assumed to be its first input's. It prints, but has no value.
    """

    name: ClassVar[str] = "unknown"
    operator: str = ""

    def __str__(self) -> str:
        return f"unknown:{self.operator}"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return inputs[0] if inputs else Shape(Type.float_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raise UnsupportedError(f"operator {self.operator!r} is unknown and cannot be computed")
