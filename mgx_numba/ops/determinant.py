"""Determinants and inverses of square matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register


@register
@dataclass(frozen=True)
class Determinant(Operator):
    """The determinant of each matrix in the last two axes, which are dropped; of an empty matrix it is 1.

    It is computed from an LU factorisation with pivots in float64.
    """

    name: ClassVar[str] = "determinant"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if shape.ndim < 2 or shape.dims[-1].max != shape.dims[-2].max or not shape.type.is_floating:
            raise self.fail(f"expected square matrices of floats in the last two axes, got {shape}")
        return Shape.dynamic(shape.type, list(shape.dims[:-2])) if shape.ndim > 2 else Shape(shape.type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        if x.shape[-1] != x.shape[-2]:
            raise self.fail(f"expected square matrices in the last two axes, got lengths {list(x.shape)}")
        with np.errstate(all="ignore"):
            values = np.linalg.det(x.astype(output.type.compute.numpy))
        return np.asarray(values, output.type.numpy).reshape(output.lens if x.ndim == 2 else x.shape[:-2])


@register
@dataclass(frozen=True)
class Inverse(Operator):
    """The inverse of each matrix in the last two axes, computed in float64; of a singular one not-a-number."""

    name: ClassVar[str] = "inverse"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if shape.ndim < 2 or shape.dims[-1].max != shape.dims[-2].max or not shape.type.is_floating:
            raise self.fail(f"expected square matrices of floats in the last two axes, got {shape}")
        return shape.to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0].astype(output.type.compute.numpy)
        values = np.full(x.shape, np.nan, x.dtype)
        for place in np.ndindex(*x.shape[:-2]):
            try:
                values[place] = np.linalg.inv(x[place])
            except np.linalg.LinAlgError:  # singular
                continue
        return values.astype(output.type.numpy)
