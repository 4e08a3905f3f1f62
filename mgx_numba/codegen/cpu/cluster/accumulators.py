"""Accumulators of reductions in the kernel language: initialisation, reduction across lanes, final value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....core.types import Type
from ....graph.instruction import Instruction
from ...printer import VectorPrinter, VectorValue
from ...reductions import REDUCTIONS, Reduction
from ...statements import const_text

_ACROSS = {
    "add": "reduce_add",
    "max": "reduce_max",
    "min": "reduce_min",
    "mul": "reduce_mul",
    "logical_or": "reduce_or",
    "logical_and": "reduce_and",
}


def initial_text(reduction: Reduction, type: Type, lanes: int) -> str:
    """Return the expression of the neutral element in every lane, for elements of ``type``."""
    dtype = reduction.accumulator(type).dtype_name
    return const_text(dtype, reduction.neutral(type), lanes)


def initial_lines(names: Mapping[Instruction, str], reductions: Sequence[Instruction], lanes: int) -> list[str]:
    """Return lines that set the accumulators of ``reductions``, called ``names``, to the neutral elements."""
    return [f"{names[r]} = {initial_text(REDUCTIONS[r.name], r.inputs[0].shape.type, lanes)}" for r in reductions]


def across_lanes(reduction: Reduction) -> str:
    """Return the name in the kernel language that reduces the lanes of an accumulator."""
    return _ACROSS[reduction.combine]


def finished(reduction: Reduction, printer: VectorPrinter, text: str, type: Type) -> VectorValue:
    """Return the row value of a reduction from ``text``: a mean whose sum can overflow, else the reduced accumulator.

    Args:
        type: type of the elements; ``count`` in the kernel is their number.
    """
    accumulator = reduction.accumulator(type)
    value = VectorValue(printer.buffer.emit(text), accumulator)
    if accumulator is Type.bool_type:
        return value
    if reduction.name == "reduce_mean" and not reduction.sum_can_overflow(type):
        count = VectorValue(printer.buffer.emit(f"cast_{accumulator.dtype_name}(count)"), accumulator)
        value = printer.div(value, count)
    if accumulator is type or accumulator is type.compute:
        return VectorValue(value.name, type)
    return printer.cast_loosely(value, type)
