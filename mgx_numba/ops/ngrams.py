"""Counts of n-grams in sequences of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, RunModule, register

if TYPE_CHECKING:
    from ..graph.module import Module


@register
@dataclass(frozen=True)
class TfIdf(Operator):
    """How often each n-gram of a pool is in each row of integers: float32 [columns], or [rows, columns].

    ``pool`` has all n-grams, those of one element from ``counts[0]`` on, those of two from ``counts[1]`` on and so on,
    and ``indexes`` the column of each n-gram. Those of ``min_length`` to ``max_length`` elements are looked for, with 0
    to ``max_skip`` elements left out between any two. ``mode`` ``TF`` counts, ``IDF`` gives a column's weight (1
    without ``weights``) where the count is not 0, ``TFIDF`` the product of both.
    """

    name: ClassVar[str] = "tf_idf"
    mode: str = "TF"
    pool: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    indexes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    min_length: int = 1
    max_length: int = 1
    max_skip: int = 0

    @property
    def columns(self) -> int:
        """Length of a row of the result."""
        return max(self.indexes, default=-1) + 1

    def compute_shape(self, inputs: Sequence[Shape], modules: Sequence[Module] = ()) -> Shape:
        self.expect_inputs(inputs, 1)
        shape = inputs[0]
        if shape.ndim not in (1, 2) or shape.type not in (Type.int32_type, Type.int64_type):
            raise self.fail(f"expected int32 or int64 of 1 or 2 dimensions, got {shape}")
        if self.mode not in ("TF", "IDF", "TFIDF"):
            raise self.fail(f"mode is {self.mode!r}, expected TF, IDF or TFIDF")
        if self.weights and len(self.weights) < self.columns:
            raise self.fail(f"{len(self.weights)} weights for {self.columns} columns")
        if len(self.ngrams()) > len(self.indexes):
            raise self.fail(f"{len(self.indexes)} indexes for at least {len(self.ngrams())} n-grams")
        columns = DynamicDimension(self.columns, self.columns)
        return Shape.dynamic(Type.float_type, [*shape.dims[:-1], columns])

    def ngrams(self) -> dict[tuple[int, ...], int]:
        """The number of each n-gram of the pool; of equal ones the first counts."""
        found: dict[tuple[int, ...], int] = {}
        number = 0
        for n, (start, end) in enumerate(zip(self.counts, (*self.counts[1:], len(self.pool))), 1):
            for place in range(start, end - n + 1, n):
                found.setdefault(self.pool[place : place + n], number)
                number += 1
        return found

    def compute(self, output: Shape, args: Sequence[np.ndarray], run: RunModule | None = None) -> Any:
        rows = args[0].reshape(prod(args[0].shape[:-1]), args[0].shape[-1])
        table = self.ngrams()
        counts = np.zeros((rows.shape[0], self.columns), np.float32)
        for n in range(self.min_length, self.max_length + 1):
            for step in range(1, 2 if n == 1 else self.max_skip + 2):
                for first in range(rows.shape[1] - (n - 1) * step):
                    for k, window in enumerate(rows[:, first : first + (n - 1) * step + 1 : step].tolist()):
                        number = table.get(tuple(window))
                        if number is not None:
                            counts[k, self.indexes[number]] += 1
        weights = np.array(self.weights[: self.columns] or [1.0] * self.columns, np.float32)
        values = counts if self.mode == "TF" else weights * (counts if self.mode == "TFIDF" else counts > 0)
        return values.astype(np.float32).reshape(*args[0].shape[:-1], self.columns)
