"""The largest or smallest elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .scalar import widened


@register
@dataclass(frozen=True)
class TopK(Operator):
    """The ``k`` largest (or smallest) elements along ``axis``, in order, and their positions: a tuple.

    Positions are int64; of equal elements the one with the lower position comes first. A second input of the
    data's lengths replaces the positions by its elements.
    """

    name: ClassVar[str] = "topk"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    k: int = 1
    axis: int = 0
    largest: bool = True

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 1, 2)[0]
        axis = self.resolve_axis(self.axis, shape.ndim)
        if not 0 <= self.k <= shape.dims[axis].max:
            raise self.fail(f"k is {self.k}, but axis {axis} of {shape} has length {shape.dims[axis]}")
        if len(inputs) == 2 and inputs[1].dims != shape.dims:
            raise self.fail(f"the second input must have the lengths of {shape}, got {inputs[1]}")
        dims = [*shape.dims[:axis], DynamicDimension(self.k, self.k), *shape.dims[axis + 1 :]]
        index_type = inputs[1].type if len(inputs) == 2 else Type.int64_type
        return Shape.tuple([Shape.dynamic(shape.type, dims), Shape.dynamic(index_type, dims)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        x = args[0]
        axis = self.axis % x.ndim
        if self.k > x.shape[axis]:
            raise self.fail(f"k is {self.k}, but axis {axis} has length {x.shape[axis]}")
        chosen = _stable_order(_rows(widened(x), axis), self.largest)[:, : self.k]
        picked = np.take_along_axis(_rows(x, axis), chosen, 1)
        index = chosen if len(args) == 1 else np.take_along_axis(_rows(args[1], axis), chosen, 1)
        outer = (*x.shape[:axis], *x.shape[axis + 1 :], self.k)
        values, places = (np.moveaxis(v.reshape(outer), -1, axis) for v in (picked, index))
        return values, places

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements


def _rows(x: np.ndarray, axis: int) -> np.ndarray:
    """Return ``x`` as a matrix whose rows lie along an axis: NumPy sorts arrays of at most 32 axes."""
    return np.moveaxis(x, axis, -1).reshape(prod(x.shape[:axis] + x.shape[axis + 1 :]), x.shape[axis])


def _stable_order(rows: np.ndarray, largest: bool) -> np.ndarray:
    """Return the positions in each row in sorted order; the sort is stable."""
    if not largest:
        return np.argsort(rows, 1, kind="stable")
    return rows.shape[1] - 1 - np.flip(np.argsort(np.flip(rows, 1), 1, kind="stable"), 1)
