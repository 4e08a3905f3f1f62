"""Relax maxima that need not propagate NaN, because another value of the row does: those of softmax."""

from __future__ import annotations

from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass

_PASSING = frozenset("add sub mul div exp log neg sqrt convert multibroadcast".split())
"""Operations that propagate NaN."""
_SUMS = ("reduce_sum", "reduce_mean")


class RewriteReduceMax(Pass):
    """In bodies of ``fused_reduce``: ``reduce_max`` -> ``reduce_max_nnan`` where no result shows the difference.

    Such a maximum is only subtracted from its own elements, and all results depend on a sum of values computed from
    them: a NaN element makes that sum NaN, whatever the maximum is.
    """

    name = "rewrite_reduce_max"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module.named(("fused_reduce",)):
            body = ins.module_args[0]
            for greatest in [i for i in body if i.name == "reduce_max" and i.shape.type.is_floating]:
                reason = _refused(body, greatest)
                if reason is not None:
                    self.log.refuse(self.name, greatest, reason)
                    continue
                self.log.apply(self.name, greatest)
                axes = greatest.op.axes  # type: ignore[attr-defined]
                body.replace_instruction(greatest, make_op("reduce_max_nnan", axes=axes))


def _refused(body: Module, greatest: Instruction) -> str | None:
    """Return the reason why a maximum must propagate NaN; None if it need not."""
    elements = {user for spread in greatest.users for user in spread.users}
    if any(spread.name != "multibroadcast" for spread in greatest.users):
        return "it is used otherwise than by its own elements"
    for ins in elements:
        if ins.name != "sub" or ins.inputs[0] is not greatest.inputs[0] or ins.inputs[1] not in greatest.users:
            return "it is not only subtracted from its own elements"
    rows: set[Instruction] = set()
    for ins in body:
        passing = ins.name in _PASSING and ins.shape.type.is_floating
        if (passing and any(i in rows for i in ins.inputs)) or (ins.name in _SUMS and ins.inputs[0] in elements):
            rows.add(ins)
        elif passing and any(i in elements for i in ins.inputs):
            elements.add(ins)
    shown = all(result in rows for result in body.results())
    return None if shown else "a result does not depend on a sum that NaN would show in"
