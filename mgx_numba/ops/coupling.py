"""Class probabilities from pairwise probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import may_be

MOST_ITERATIONS = 100
"""LIBSVM's ``max_iter`` of ``multiclass_probability``, which is at least the number of classes."""
TOLERANCE = 0.005
"""LIBSVM's, over the number of classes."""


@register
@dataclass(frozen=True)
class PairwiseCoupling(Operator):
    """Class probabilities [n, classes] that best fit pairwise probabilities [n, pairs]: for classes i < j, in the order
    (0, 1), (0, 2), ..., the probability of i given i or j.

    Second method of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling"
    (2004), iterated as in LIBSVM.
    """

    name: ClassVar[str] = "pairwise_coupling"
    classes: int = 2

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        x, pairs = inputs[0], self.classes * (self.classes - 1) // 2
        if x.ndim != 2 or not may_be(x.dims[1], pairs) or self.classes < 2:
            raise self.fail(f"expected [n, {pairs}] for {self.classes} classes, got {x}")
        if x.type not in (Type.float_type, Type.double_type):
            raise self.fail(f"expected float32 or float64, got {x.type.name}")
        return Shape.dynamic(x.type, [x.dims[0], DynamicDimension(self.classes, self.classes)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        rows = [self._row(row) for row in args[0].astype(np.float64)]
        return np.array(rows, args[0].dtype).reshape(-1, self.classes)

    def _row(self, pairs: np.ndarray) -> np.ndarray:
        count = self.classes
        r = np.zeros((count, count))
        upper = np.triu_indices(count, 1)
        r[upper] = pairs
        r.T[upper] = 1 - pairs
        q = -r * r.T
        np.fill_diagonal(q, (r**2).sum(axis=0))
        p = np.full(count, 1 / count)
        for _ in range(max(MOST_ITERATIONS, count)):
            qp = q @ p
            whole = float(p @ qp)
            if np.abs(qp - whole).max() < TOLERANCE / count:
                break
            for k in range(count):
                step = (whole - qp[k]) / q[k, k]
                p[k] += step
                whole = (whole + step * (step * q[k, k] + 2 * qp[k])) / (1 + step) ** 2
                qp = (qp + step * q[k]) / (1 + step)
                p /= 1 + step
        return p
