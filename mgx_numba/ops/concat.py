"""Concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape, find_permutation
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, meet_dim


@register
@dataclass(frozen=True)
class Concat(Operator):
    """Concatenate inputs along ``axis``; the result is packed in the memory order that most inputs have."""

    name: ClassVar[str] = "concat"
    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        if not inputs:
            raise self.fail("got no input")
        self.expect_same_type(inputs)
        first = inputs[0]
        if any(s.ndim != first.ndim for s in inputs):
            raise self.fail(f"inputs have different ranks: {'; '.join(map(str, inputs))}")
        axis = self.resolve_axis(self.axis, first.ndim)
        if not any_dynamic(inputs):
            return self._of_lens(inputs, axis)
        dims: list[DynamicDimension] = []
        for k, column in enumerate(zip(*(s.dims for s in inputs))):
            if k == axis:
                dims.append(DynamicDimension(sum(d.min for d in column), sum(d.max for d in column)))
            else:
                dims.append(meet_dim(self, f"lengths of axis {k}", *column))
        return Shape.dynamic(first.type, dims)

    def _of_lens(self, inputs: Sequence[Shape], axis: int) -> Shape:
        lens = list(inputs[0].lens)
        for shape in inputs[1:]:
            for k, n in enumerate(shape.lens):
                if k == axis:
                    lens[k] += n
                elif n != lens[k]:
                    raise self.fail(f"lengths of axis {k} differ: {' and '.join(str(s.lens[k]) for s in inputs)}")
        return Shape.from_permutation(inputs[0].type, lens, find_permutation(inputs))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(args, self.axis)
