"""Reductions of clusters: neutral element, combining operation, contribution of an element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core.types import Type
from ..dataclass import dataclass
from ..ops import reduce
from ..ops.reduce import ReduceOperator


@dataclass(frozen=True)
class Reduction:
    """One associative reduction.

    ``combine`` is the operation of the scalar protocol that joins two accumulators. Narrow floats accumulate in
    float32, the mean of integers in 64 bits.

    A mean is a sum, divided by the number of elements at the end. ONNX defines normalisations by row means, which are
    finite for finite elements, so back ends must handle overflow of that sum (`sum_can_overflow`). A mean of squares is
    infinite only if a square is, and normalised values are then 0. A plain sum may be infinite, or NaN if partial sums
    are infinite with both signs.
    """

    operator: type[ReduceOperator]
    combine: str

    @property
    def name(self) -> str:
        """Name of the operator."""
        return self.operator.name

    def accumulator(self, type: Type) -> Type:
        """Return the element type of the accumulator."""
        return self.operator.accumulator_type(type)

    def sum_can_overflow(self, type: Type) -> bool:
        """Return whether this is a mean whose sum may overflow the accumulator although the mean does not."""
        return self.operator.sum_can_overflow(type)

    def neutral(self, type: Type) -> float | int | bool:
        """Return the neutral element for elements of ``type``."""
        if self.name in ("reduce_sum", "reduce_mean"):
            return 0
        if self.name == "reduce_prod":
            return 1
        if self.name in ("reduce_any", "reduce_all"):
            return self.name == "reduce_all"
        greatest = self.name == "reduce_max"
        if type.is_floating:
            return -math.inf if greatest else math.inf
        if type is Type.bool_type:
            return not greatest
        info = np.iinfo(type.numpy)
        return int(info.min if greatest else info.max)

    def contribution(self, handler: Any, value: Any, type: Type) -> Any:
        """Return the contribution of one element, through a handler of the scalar protocol."""
        if self.name in ("reduce_any", "reduce_all"):
            return handler.cast(value, Type.bool_type)
        if self.name == "reduce_mean" and not type.is_floating:
            return handler.cast(value, self.accumulator(type))
        return value


REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in (
        Reduction(reduce.ReduceSum, "add"),
        Reduction(reduce.ReduceMean, "add"),
        Reduction(reduce.ReduceMax, "max"),
        Reduction(reduce.ReduceMin, "min"),
        Reduction(reduce.ReduceProd, "mul"),
        Reduction(reduce.ReduceAny, "logical_or"),
        Reduction(reduce.ReduceAll, "logical_and"),
    )
}
