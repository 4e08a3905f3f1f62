"""The reductions that clusters know: neutral element, how two values combine, and what is left to do at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.types import Type
from .cpu.printer import VectorValue

__all__ = ["REDUCTIONS", "Reduction"]


@dataclass(frozen=True)
class Reduction:
    """One associative reduction in the kernel language.

    ``combine`` joins two accumulators, ``across`` joins the lanes of one. Narrow floats accumulate in float32, the
    mean of integers in 64 bits.
    """

    name: str
    combine: str
    across: str

    def accumulator(self, type: Type) -> Type:
        """Element type of the accumulator."""
        if self.name in ("reduce_any", "reduce_all"):
            return Type.bool_type
        if self.name == "reduce_mean" and not type.is_floating:
            return Type.uint64_type if type is Type.uint64_type else Type.int64_type
        return type.compute

    def initial(self, type: Type, lanes: int) -> str:
        """Expression of the neutral element in every lane."""
        dtype = self.accumulator(type).numpy.name
        if self.name in ("reduce_sum", "reduce_mean"):
            neutral = "0"
        elif self.name == "reduce_prod":
            neutral = "1"
        elif self.name == "reduce_any":
            neutral = "False"
        elif self.name == "reduce_all":
            neutral = "True"
        elif type.is_floating:
            neutral = "-INF" if self.name == "reduce_max" else "INF"
        elif type is Type.bool_type:
            neutral = "False" if self.name == "reduce_max" else "True"
        else:
            info = np.iinfo(type.numpy)
            neutral = str(info.min if self.name == "reduce_max" else info.max)
        return f"const_{dtype}({neutral}, {lanes})"

    def prepare(self, printer: Any, value: Any, type: Type) -> Any:
        """What one element contributes."""
        if self.name in ("reduce_any", "reduce_all"):
            return printer.cast(value, Type.bool_type)
        if self.name == "reduce_mean" and not type.is_floating:
            return printer.cast(value, self.accumulator(type))
        return value

    def finish(self, printer: Any, text: str, type: Type) -> Any:
        """Row value, from the combined accumulator that ``text`` gives; ``type`` is the elements'."""
        accumulator = self.accumulator(type)
        value = VectorValue(printer.buffer.emit(text), accumulator)
        if accumulator is Type.bool_type:
            return value
        if self.name == "reduce_mean":
            count = VectorValue(printer.buffer.emit(f"cast_{accumulator.numpy.name}(count)"), accumulator)
            value = printer.div(value, count)
        if accumulator is type or accumulator is type.compute:
            return VectorValue(value.name, type)
        return printer.cast(value, type)


REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in (
        Reduction("reduce_sum", "add", "reduce_add"),
        Reduction("reduce_mean", "add", "reduce_add"),
        Reduction("reduce_max", "max", "reduce_max"),
        Reduction("reduce_min", "min", "reduce_min"),
        Reduction("reduce_prod", "mul", "reduce_mul"),
        Reduction("reduce_any", "logical_or", "reduce_or"),
        Reduction("reduce_all", "logical_and", "reduce_and"),
    )
}
