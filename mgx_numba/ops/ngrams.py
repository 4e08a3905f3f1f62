"""Counts of n-grams in sequences of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .constant_tables import kept_for_constants


@register
@dataclass(frozen=True)
class TfIdf(Operator):
    """How often each n-gram of a pool occurs in each row of integers x: float32 [``columns``], or [rows, ``columns``].

    The inputs after x are int64 vectors and a float32 vector:

        pool: all n-grams, those of one element from ``counts[0]`` on, those of two from ``counts[1]`` on and so on.
        indexes: the column of each n-gram, below ``columns``.
        weights: of each column, or empty.

    N-grams of ``min_length`` to ``max_length`` elements are searched for, with 0 to ``max_skip`` elements left out
    between any two. ``mode`` ``TF`` counts, ``IDF`` gives a column's weight (1 without weights) where the count is
    not 0, ``TFIDF`` the product of both. Of equal n-grams of the pool the first counts.
    """

    name: ClassVar[str] = "tf_idf"
    mode: str = "TF"
    counts: tuple[int, ...] = ()
    columns: int = 0
    min_length: int = 1
    max_length: int = 1
    max_skip: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape, *tables = self.expect_inputs(inputs, 4)
        if shape.ndim not in (1, 2) or shape.type not in (Type.int32_type, Type.int64_type):
            raise self.fail(f"expected int32 or int64 of 1 or 2 dimensions, got {shape}")
        if self.mode not in ("TF", "IDF", "TFIDF"):
            raise self.fail(f"mode is {self.mode!r}, expected TF, IDF or TFIDF")
        types = [Type.int64_type, Type.int64_type, Type.float_type]
        if [t.type for t in tables] != types or any(t.is_dynamic or t.ndim != 1 for t in tables):
            raise self.fail(f"pool, indexes and weights are {tables[0]}, {tables[1]} and {tables[2]}, expected vectors")
        pool, indexes, weights = (t.lens[0] for t in tables)
        if weights and weights < self.columns:
            raise self.fail(f"{weights} weights for {self.columns} columns")
        ngrams = sum(len(range(*part)) for part in _parts(self.counts, pool))
        if ngrams > indexes:
            raise self.fail(f"{indexes} indexes for at least {ngrams} n-grams")
        columns = DynamicDimension(self.columns, self.columns)
        return Shape.dynamic(Type.float_type, [*shape.dims[:-1], columns])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, pool, indexes, weights = args
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
        tables = _tables(pool, indexes, counts=self.counts)
        counts = np.zeros((rows.shape[0], self.columns), np.float32)
        for n in range(max(self.min_length, 1), min(self.max_length, len(tables)) + 1):
            for step in range(1, 2 if n == 1 else self.max_skip + 2):
                width = rows.shape[1] - (n - 1) * step
                if width > 0:
                    windows = np.stack([rows[:, k * step : k * step + width] for k in range(n)], -1)
                    column = tables[n - 1].columns(windows)
                    row, place = np.nonzero(column >= 0)
                    np.add.at(counts, (row, column[row, place]), 1)
        weights = weights[: self.columns] if weights.size else np.ones(self.columns, np.float32)
        values = counts if self.mode == "TF" else weights * (counts if self.mode == "TFIDF" else counts > 0)
        return values.astype(np.float32).reshape(*x.shape[:-1], self.columns)


class _Ngrams:
    """A search tree for n-grams of one length.

    Level k numbers the distinct prefixes of k + 1 elements: ``keys[k]`` has, in order, the number of each prefix
    without its last element times the number of distinct elements, plus the number of the last element.
    """

    def __init__(self, ngrams: np.ndarray, columns: np.ndarray) -> None:
        """``ngrams`` is [count, n]; ``columns`` has the column of each n-gram."""
        self._elements, flat = np.unique(ngrams, return_inverse=True)
        numbers = flat.reshape(ngrams.shape)
        prefix = np.zeros(len(ngrams), np.int64)
        self._keys: list[np.ndarray] = []
        first = np.zeros(0, np.int64)
        for k in range(ngrams.shape[1]):
            keys, first, prefix = np.unique(
                prefix * self._elements.size + numbers[:, k], return_index=True, return_inverse=True
            )
            self._keys.append(keys)
        self._columns = columns[first]

    def columns(self, windows: np.ndarray) -> np.ndarray:
        """Return the column of each n-gram [..., n], -1 for an n-gram that is not in the pool."""
        if not self._columns.size:
            return np.full(windows.shape[:-1], -1)
        numbers, known = _found(self._elements, windows)
        known, prefix = np.logical_and.reduce(known, axis=-1), np.zeros(windows.shape[:-1], np.int64)
        for k, keys in enumerate(self._keys):
            prefix, there = _found(keys, prefix * self._elements.size + numbers[..., k])
            known &= there
        return np.where(known, self._columns[prefix], -1)


def _found(known: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each value in a sorted array, and whether the array has the value."""
    place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return place, known[place] == wanted


@kept_for_constants
def _tables(pool: np.ndarray, indexes: np.ndarray, *, counts: tuple[int, ...]) -> list[_Ngrams]:
    """Return the n-grams of each length of a pool."""
    tables, number = [], 0
    for start, end, n in _parts(counts, pool.size):
        count = len(range(start, end, n))
        ngrams = pool[start : start + count * n].reshape(count, n)
        tables.append(_Ngrams(ngrams, indexes[number : number + count]))
        number += count
    return tables


def _parts(counts: tuple[int, ...], size: int) -> list[tuple[int, int, int]]:
    """Return, for each length n, the range of the first elements of its n-grams in a pool of ``size`` elements."""
    ends = (*counts[1:], size)
    return [(start, end - n + 1, n) for n, (start, end) in enumerate(zip(counts, ends), 1)]
