"""Maxima that may lose a NaN, because something else of the row shows it: those of softmax."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ....graph.module import Module

__all__ = ["maxima_without_nan"]

_PASSING = frozenset("add sub mul div exp log neg sqrt convert multibroadcast".split())
_SUMS = ("reduce_sum", "reduce_mean")


def maxima_without_nan(module: Module) -> set[Instruction]:
    """Maxima that are only subtracted from their own elements, if all results depend on a sum over what comes of that.

    A NaN among the elements makes such a sum NaN whatever the maximum is.
    """
    return {i for i in module if i.name == "reduce_max" and i.shape.type.is_floating and _is_shown(module, i)}


def _is_shown(module: Module, greatest: Instruction) -> bool:
    elements = {user for spread in greatest.users for user in spread.users}
    if any(spread.name != "multibroadcast" for spread in greatest.users):
        return False
    for ins in elements:
        if ins.name != "sub" or ins.inputs[0] is not greatest.inputs[0] or ins.inputs[1] not in greatest.users:
            return False
    rows: set[Instruction] = set()
    for ins in module:
        passing = ins.name in _PASSING and ins.shape.type.is_floating
        if (passing and any(i in rows for i in ins.inputs)) or (ins.name in _SUMS and ins.inputs[0] in elements):
            rows.add(ins)
        elif passing and any(i in elements for i in ins.inputs):
            elements.add(ins)
    return all(result in rows for result in module.results())
