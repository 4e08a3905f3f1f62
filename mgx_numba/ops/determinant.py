"""Determinants and inverses of square matrices, and systems of linear equations with triangular ones."""

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


@register
@dataclass(frozen=True)
class SolveTriangular(Operator):
    """The matrices ``x`` [..., n, m] with ``a @ x == b``, by substitution, for triangular matrices ``a`` [..., n, n].

    Attributes:
        upper: `a` is upper triangular, and its elements below the diagonal are not read; else it is lower triangular.
        unit: the diagonal is 1 and is not read. Without it, a 0 on the diagonal gives infinities or not-a-number.
    """

    name: ClassVar[str] = "solve_triangular"
    upper: bool = False
    unit: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        a, b = self.expect_inputs(inputs, 2)
        if a.type is not b.type or not a.type.is_floating:
            raise self.fail(f"expected two operands of one floating-point type, got {a} and {b}")
        rows = [shape.dims[axis].max for shape, axis in ((a, -1), (a, -2), (b, -2)) if shape.ndim > 1]
        outer = [[d.max for d in shape.dims[:-2]] for shape in (a, b)]
        if len(rows) < 3 or len(set(rows)) > 1 or outer[0] != outer[1]:
            raise self.fail(f"expected as many square matrices as right-hand sides with as many rows, got {a} and {b}")
        return b.to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        a, b = (x.astype(output.type.compute.numpy) for x in args)
        length, x = b.shape[-2], np.zeros_like(b)
        known = slice(0, 0)
        with np.errstate(all="ignore"):
            for i in reversed(range(length)) if self.upper else range(length):
                total = b[..., i, :] - np.einsum("...j,...jk->...k", a[..., i, known], x[..., known, :])
                x[..., i, :] = total if self.unit else total / a[..., i, i, None]
                known = slice(i, length) if self.upper else slice(0, i + 1)
        return x.astype(output.type.numpy)
