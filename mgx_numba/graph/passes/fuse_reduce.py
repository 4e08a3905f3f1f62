"""Reduction fusion: softmax, layer norm, RMS norm and the like become one ``fused_reduce`` instruction."""

from __future__ import annotations

from collections.abc import Callable

from ...core.shape import Lens
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .regions import absorb_producers, extract, grow, is_fusable_type, is_scalar_literal, order_of

__all__ = ["REDUCTIONS", "FuseReduce"]

REDUCTIONS = frozenset("reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_any reduce_all".split())


class FuseReduce(Pass):
    """Reductions over the same axes, and the pointwise operations before, between and after them, in one instruction.

    A region's values have either the full lengths or the reduced ones (1 on the reduced axes); ``multibroadcast``
    leads back from reduced to full.
    """

    name = "fuse_reduce"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        for ins in list(module):
            if ins.module is not module or not _is_reduction(ins):
                continue
            full, reduced = ins.inputs[0].shape.lens, ins.shape.lens
            if 0 in full:
                continue
            accept = _acceptor(ins, full, reduced)
            region = _with_producers(grow([ins], order, accept), order, accept, full)
            position = order[region[-1]]
            axes = tuple(sorted(ins.op.axes))  # type: ignore[attr-defined]
            for result in extract(program, module, region, make_op("fused_reduce", axes=axes), "fused_reduce"):
                order[result] = position


def _with_producers(
    region: list[Instruction], order: dict[Instruction, int], accept: Callable[[Instruction], bool], full: Lens
) -> list[Instruction]:
    """The region with what computes its inputs, unless nothing of the full lengths would be left to walk over."""
    wider = absorb_producers(region, order, accept)
    members = set(wider)
    outer = (i for ins in wider for i in ins.inputs if i not in members and is_scalar_literal(i) is None)
    return wider if any(i.shape.lens == full for i in outer) else region


def _is_reduction(ins: Instruction) -> bool:
    return (
        ins.name in REDUCTIONS
        and len(ins.inputs) == 1
        and bool(ins.op.axes)  # type: ignore[attr-defined]
        and is_fusable_type(ins.shape)
        and is_fusable_type(ins.inputs[0].shape)
    )


def _acceptor(root: Instruction, full: tuple[int, ...], reduced: tuple[int, ...]) -> Callable[[Instruction], bool]:
    axes = set(root.op.axes)  # type: ignore[attr-defined]

    def accept(ins: Instruction) -> bool:
        if not is_fusable_type(ins.shape) or not all(is_fusable_type(i.shape) for i in ins.inputs):
            return False
        if ins.name in REDUCTIONS:
            return (
                len(ins.inputs) == 1
                and set(ins.op.axes) == axes  # type: ignore[attr-defined]
                and ins.inputs[0].shape.lens == full
            )
        if ins.name == "multibroadcast":
            return len(ins.inputs) == 1 and ins.shape.lens == full and ins.inputs[0].shape.lens == reduced
        return ins.op.pointwise and not ins.module_args and ins.shape.lens in (full, reduced)

    return accept
