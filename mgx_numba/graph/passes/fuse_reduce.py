"""Reduction fusion: softmax, layer norm, RMS norm and the like become one ``fused_reduce`` instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.dim import known_equal, known_same
from ...core.shape import Lens
from ...core.types import Type
from ...environment import environment_flag
from ...ops.base import make_op
from ..constants import is_constant
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .autocast_fp8 import FLOAT8
from .base import Options, Pass
from .regions import Refuses, absorb_producers, extract, grow, is_scalar_literal, open_values, order_of, unfusable
from .rules.quantized import INT8

NARROW = INT8 | FLOAT8 | {Type.half_type, Type.bf16_type}
MOST_FORMS = 3
"""Most quantised forms of one value; each is another result to store. No figures kept."""
LONGEST = 8
"""Most operations of a quantisation: conversion, scale, limits, rounding, zero point, conversion."""


def with_narrow_forms(
    region: Sequence[Instruction], order: Mapping[Instruction, int], refuses: Refuses
) -> list[Instruction]:
    """Return a region of one result extended by the operations that round the result, in program order. Return the
    region itself if something reads the result before these can be computed.

    The operations read only constants beside the result, so no path leaves the region and returns.
    """
    found = open_values(region)
    if len(found) != 1 or len(found[0].users) < 2:
        return list(region)
    members = set(region)
    forms = [_rounding(user, refuses) for user in found[0].users if user not in members and user in order]
    chosen = [form for form in forms if form][:MOST_FORMS]
    wider = sorted([*region, *(ins for form in chosen for ins in form)], key=order.__getitem__)
    last = order[wider[-1]]
    outside = [user for ins in open_values(wider) for user in ins.users if user not in set(wider)]
    return wider if all(order.get(user, last) > last for user in outside) else list(region)


def _rounding(first: Instruction, refuses: Refuses) -> list[Instruction]:
    """Return the operations, from ``first``, that quantise a value; empty if they do not."""
    chain = [first]
    while len(chain) <= LONGEST:
        last = chain[-1]
        if not last.op.pointwise or refuses(last) is not None or sum(not is_constant(i) for i in last.inputs) != 1:
            return []
        if last.shape.type in NARROW:
            return chain
        if len(last.users) != 1:
            return []
        chain.append(next(iter(last.users)))
    return []


REDUCTIONS = frozenset("reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_any reduce_all".split())


class FuseReduce(Pass):
    """Fuse reductions over the same axes with the pointwise operations before, between and after them.

    A region's values have the full shape or the reduced one (1 along the reduced axes); ``multibroadcast`` leads from
    reduced to full. With ``MIGRAPHX_DISABLE_REDUCE_FUSION`` a reduction stays alone.
    """

    name = "fuse_reduce"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        for ins in module.named(REDUCTIONS):
            if ins.module is not module:
                continue
            reason = _refused(ins)
            if reason is not None:
                self.log.refuse(self.name, ins, reason)
                continue
            full, reduced = ins.inputs[0].shape.lens, ins.shape.lens
            refuses = _alone if environment_flag("MIGRAPHX_DISABLE_REDUCE_FUSION") else _refuser(ins, full, reduced)
            region = grow([ins], order, refuses, note=self.note)
            wider = absorb_producers(region, order, refuses, self.note)
            if _reads_full(wider, full):
                region = wider
            elif len(wider) > len(region):
                self.note(ins, "nothing of the full lengths would be read if what makes its inputs joined")
            if options.capabilities is not None and options.capabilities.narrow_results:
                region = with_narrow_forms(region, order, refuses)
            self.log.apply(self.name, ins)
            position = order[region[-1]]
            axes = tuple(sorted(ins.op.axes))  # type: ignore[attr-defined]
            for result in extract(program, module, region, make_op("fused_reduce", axes=axes), "fused_reduce"):
                order[result] = position


def _reads_full(region: list[Instruction], full: Lens) -> bool:
    """Return whether an operand of the full shape remains."""
    members = set(region)
    outer = (i for ins in region for i in ins.inputs if i not in members and is_scalar_literal(i) is None)
    return any(known_same(i.shape.lens, full) for i in outer)


def _refused(ins: Instruction) -> str | None:
    """Return the reason why a reduction cannot start a region; None if it can."""
    if len(ins.inputs) != 1:
        return "the axes are known at run time only"
    if not ins.op.axes:  # type: ignore[attr-defined]
        return "the axes are not listed"
    reason = unfusable(ins)
    if reason is None and any(known_equal(n, 0) for n in ins.inputs[0].shape.lens):
        return "there are no elements"
    return reason


def _alone(ins: Instruction) -> str | None:
    return "MIGRAPHX_DISABLE_REDUCE_FUSION is set"


def _refuser(root: Instruction, full: Lens, reduced: Lens) -> Refuses:
    axes = set(root.op.axes)  # type: ignore[attr-defined]

    def refuses(ins: Instruction) -> str | None:
        reason = unfusable(ins)
        if reason is not None:
            return reason
        if ins.name in REDUCTIONS:
            if len(ins.inputs) != 1 or set(ins.op.axes) != axes:  # type: ignore[attr-defined]
                return f"it reduces other axes than {sorted(axes)}"
            same = known_same(ins.inputs[0].shape.lens, full)
            return None if same else f"what it reduces has other lengths than {list(full)}"
        if ins.name == "multibroadcast":
            back = len(ins.inputs) == 1 and known_same(ins.shape.lens, full)
            back = back and known_same(ins.inputs[0].shape.lens, reduced)
            return None if back else f"it does not lead from {list(reduced)} to {list(full)}"
        if not ins.op.pointwise or ins.module_args:
            return "it is no pointwise operation, nor a reduction"
        own = ins.shape.lens
        return (
            None
            if known_same(own, full) or known_same(own, reduced)
            else f"its lengths are neither {list(full)} nor the reduced"
        )

    return refuses
