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
        trie, length = _trie(pool, indexes, counts=self.counts), rows.shape[1]
        numbers = trie.numbers(rows.reshape(-1))
        starts = np.flatnonzero(numbers >= 0)
        counts = np.zeros((rows.shape[0], self.columns), np.float32)
        for step in range(1, self.max_skip + 2):
            place, node = starts, trie.first[numbers[starts]]
            for n in range(1, min(self.max_length, len(self.counts)) + 1):
                if n > 1:
                    ahead = (n - 1) * step
                    fits = (node >= 0) & (place % length + ahead < length)
                    place, node = place[fits], node[fits]
                    number = numbers[place + ahead]
                    known = number >= 0
                    place, node = place[known], trie.children(node[known], number[known])
                if n >= self.min_length and (n > 1 or step == 1):
                    column = trie.columns[node]
                    ends = column >= 0
                    np.add.at(counts.reshape(-1), place[ends] // length * self.columns + column[ends], 1)
        weights = weights[: self.columns] if weights.size else np.ones(self.columns, np.float32)
        values = counts if self.mode == "TF" else weights * (counts if self.mode == "TFIDF" else counts > 0)
        return values.astype(np.float32, copy=False).reshape(*x.shape[:-1], self.columns)


MOST_LISTED = 1 << 20
"""Largest range of a pool's elements whose numbers are listed (8 MiB); in larger ranges they are searched for."""


class _Trie:
    """A search tree for n-grams. Node 0 is the root, -1 stands for sequences that begin no n-gram.

    Attributes:
        first: the root's child for the element of each number.
        columns: the column of the n-gram that ends at each node, or -1; -1 also for node -1.
    """

    def __init__(self, tables: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """``tables`` has for each length n the n-grams [count, n] and their columns [count]."""
        elements = np.unique(np.concatenate([np.zeros(1, np.int64), *(t.reshape(-1) for t, _ in tables)]))
        self._elements, self._low, self._high = elements, int(elements[0]), int(elements[-1])
        self._listed: np.ndarray | None = None
        if self._high - self._low < MOST_LISTED:
            self._listed = np.zeros(self._high - self._low + 1, np.int64)
            self._listed[elements - self._low] = np.arange(elements.size)
        numbers = [self.numbers(ngrams) for ngrams, _ in tables]
        nodes = [np.zeros(len(ngrams), np.int64) for ngrams in numbers]
        levels, ends, count = [], [], 1
        for k in range(len(tables)):  # nodes are numbered level by level, so that all keys are in order
            keys = [self._keys(node, ngrams[:, k]) for node, ngrams in zip(nodes[k:], numbers[k:])]
            found = np.unique(np.concatenate(keys))
            nodes[k:] = [count + np.searchsorted(found, key) for key in keys]
            levels.append(found)
            ends.append(nodes[k])
            count += found.size
        self._known = np.concatenate([*levels, [np.iinfo(np.int64).max]])
        self.first, self.columns = np.full(elements.size, -1), np.full(count + 1, -1)
        if levels:
            self.first[levels[0]] = np.arange(levels[0].size) + 1
        for node, (_, columns) in zip(ends, tables):
            self.columns[node[::-1]] = columns[::-1]  # the first of equal n-grams is assigned last

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Return the number of each element, -1 for an element of no n-gram."""
        if self._listed is None:
            number = np.minimum(np.searchsorted(self._elements, x), self._elements.size - 1)
        else:
            number = self._listed[np.clip(x.astype(np.int64), self._low, self._high) - self._low]
        return np.where(self._elements[number] == x, number, -1)

    def children(self, node: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the child of each node for the element of a number."""
        keys = self._keys(node, numbers)
        place = np.searchsorted(self._known, keys)
        return np.where(self._known[place] == keys, place + 1, -1)

    def _keys(self, node: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return node * self._elements.size + numbers


@kept_for_constants
def _trie(pool: np.ndarray, indexes: np.ndarray, *, counts: tuple[int, ...]) -> _Trie:
    """Return the n-grams of a pool."""
    tables, number = [], 0
    for start, end, n in _parts(counts, pool.size):
        count = len(range(start, end, n))
        ngrams = pool[start : start + count * n].reshape(count, n)
        tables.append((ngrams, indexes[number : number + count]))
        number += count
    return _Trie(tables)


def _parts(counts: tuple[int, ...], size: int) -> list[tuple[int, int, int]]:
    """Return, for each length n, the range of the first elements of its n-grams in a pool of ``size`` elements."""
    ends = (*counts[1:], size)
    return [(start, end - n + 1, n) for n, (start, end) in enumerate(zip(counts, ends), 1)]
