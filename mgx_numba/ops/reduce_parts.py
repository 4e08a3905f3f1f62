"""Reductions of parts of their elements; only rewrites of ``fused_reduce`` create them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dim import is_symbolic
from ..core.shape import Shape
from ..core.types import finfo
from ..dataclass import dataclass
from .base import Operator, operator_class, register
from .dims import packed_like
from .reduce import ReduceOperator


def _rows(x: np.ndarray, axes: Sequence[int]) -> tuple[list[int], np.ndarray]:
    """Return the kept axes, and the elements as a matrix with a row for each index of these."""
    kept = [a for a in range(x.ndim) if a not in axes]
    lens = prod(x.shape[a] for a in kept), prod(x.shape[a] for a in axes)
    return kept, x.transpose(*kept, *axes).reshape(lens)


@register
@dataclass(frozen=True)
class ReduceParts(Operator):
    """A reduction over ``axes`` with a result for each of ``parts * fold`` parts of the elements.

    The results follow one another along the first of ``axes``; reduced once more along it they give what the whole
    reduction does. An element is in part ``(c // share) * fold + f % fold``, where ``c`` is its index along ``cut``
    and ``f`` that along ``folded``: reduced axes that count as one, the slowest first. A part without elements gives
    the reduction's value of none.

    Attributes:
        operation: name of the reduction, which must be associative: no mean.
        permutation: the order of the result's axes in memory, slowest first; row-major when empty.
    """

    name: ClassVar[str] = "reduce_parts"
    reduction: ClassVar[bool] = True
    AXES: ClassVar[tuple[str, ...]] = ("axes", "cut", "folded")
    operation: str = "reduce_sum"
    axes: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    share: int = 1
    parts: int = 1
    folded: tuple[int, ...] = ()
    fold: int = 1
    permutation: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (shape,) = self.expect_inputs(inputs, 1)
        if shape.is_dynamic:
            raise self.fail("needs static lengths")
        if not self.axes or not {*self.cut, *self.folded} <= set(self.axes):
            raise self.fail(f"cut {list(self.cut)} and folded {list(self.folded)} must be among axes {list(self.axes)}")
        along = prod(shape.lens[a] for a in self.cut)
        known = not is_symbolic(along) and not is_symbolic(self.share)
        if min(self.parts, self.fold) < 1 or (known and (self.share < 1 or self.share * self.parts < along)):
            raise self.fail(f"{self.parts} parts of {self.share} elements do not cover {along}")
        lens = [1 if a in self.axes else n for a, n in enumerate(shape.lens)]
        lens[self.axes[0]] = self.parts * self.fold
        order = self.permutation or range(shape.ndim)
        return Shape.from_permutation(self._whole().output_type(shape.type), lens, order)

    def _whole(self) -> ReduceOperator:
        """Return the reduction of all elements of a row.

        Raises:
            ShapeError: ``operation`` is not a reduction, or is not associative.
        """
        cls = operator_class(self.operation)
        if not issubclass(cls, ReduceOperator) or not cls.associative:
            raise self.fail(f"{self.operation} is no associative reduction")
        return cls(axes=(1,))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, count = args[0], self.parts * self.fold
        kept, rows = _rows(x, self.axes)
        numbers = self._index(x.shape, self.cut) // self.share * self.fold
        numbers = (numbers + self._index(x.shape, self.folded) % self.fold).reshape(-1)
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(count + 1))
        whole, one = self._whole(), Shape(output.type, (len(rows), 1))
        found = [whole.compute(one, [rows[:, order[first:last]]]) for first, last in pairwise(ends)]
        results = np.concatenate(found, 1).reshape(*(x.shape[a] for a in kept), count)
        places = [kept.index(a) if a in kept else len(kept) for a in range(x.ndim) if a in kept or a == self.axes[0]]
        return results.transpose(places).reshape(output.lens)

    def _index(self, lens: Sequence[int], axes: Sequence[int]) -> np.ndarray:
        """Return each reduced element's flat index along ``axes``, as an array over ``self.axes``."""
        index = np.zeros([lens[a] for a in self.axes], np.int64)
        for a in axes:
            place = self.axes.index(a)
            steps = np.arange(lens[a]).reshape([-1 if k == place else 1 for k in range(len(self.axes))])
            index = index * lens[a] + steps
        return index


def largest_head(dtype: object) -> float:
    """Return the bound on head means of a type: subtracting it from the largest number does not change that."""
    info = finfo(dtype)
    return float(info.max) * float(info.eps) / 8


@register
@dataclass(frozen=True)
class HeadMean(Operator):
    """Mean of the first 1 / ``share`` of each row's elements; 0 if subtracting it from an element could overflow.

    It is an estimate of the mean, known before the row is read, used as the shift of moments. Any shift gives the same
    moments up to rounding, so a kernel may average other elements, at least as many.
    """

    name: ClassVar[str] = "head_mean"
    AXES: ClassVar[tuple[str, ...]] = ("axes",)
    axes: tuple[int, ...] = ()
    share: int = 32

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].is_dynamic or not inputs[0].type.is_floating:
            raise self.fail(f"needs floats of static lengths, got {inputs[0]}")
        return packed_like(inputs[0], [1 if a in self.axes else n for a, n in enumerate(inputs[0].lens)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        _, rows = _rows(args[0], self.axes)
        head = rows[:, : -(-rows.shape[1] // self.share)].astype(np.float64)
        with np.errstate(all="ignore"):
            mean = head.sum(1) / max(head.shape[1], 1)
            value = mean.astype(output.type.numpy)
            small = np.abs(mean) < largest_head(output.type.numpy)
        return np.where(small, value, output.type.numpy.type(0)).reshape(output.lens)
