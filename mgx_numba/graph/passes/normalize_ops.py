"""Canonical attributes: axes counted from the front, paddings given for both ends of each axis."""

from __future__ import annotations

from ...core.dim import known_same
from ...ops.base import Operator
from ..module import Module
from ..program import Program
from .base import Options, Pass

__all__ = ["NormalizeOps"]


class NormalizeOps(Pass):
    """Replaces every operator by its canonical form for its inputs (``Operator.normalized``); shapes stay."""

    name = "normalize_ops"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module:
            if ins.normalized:
                continue
            if ins.inputs:
                canonical = ins.op.normalized([i.shape for i in ins.inputs])
                if not _is_same(canonical, ins.op):
                    module.replace_instruction(ins, canonical)
            ins.normalized = True


def _is_same(a: Operator, b: Operator) -> bool:
    """Return whether two forms of one operator have the same attributes, symbolic lengths as expressions."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in a.attribute_kinds()]
    return a is b or all(
        known_same(x, y) if isinstance(x, tuple) and isinstance(y, tuple) else known_same((x,), (y,)) for x, y in pairs
    )
