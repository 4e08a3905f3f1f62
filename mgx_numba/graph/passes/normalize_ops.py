"""Canonicalise attributes: non-negative axes, padding for both ends of each axis."""

from __future__ import annotations

from ..module import Module
from ..program import Program
from .base import Options, Pass


class NormalizeOps(Pass):
    """Replace every operator by its canonical form (``Operator.normalized``); shapes stay."""

    name = "normalize_ops"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module:
            if ins.normalized:
                continue
            if ins.inputs:
                canonical = ins.op.normalized([i.shape for i in ins.inputs])
                if canonical != ins.op:
                    module.replace_instruction(ins, canonical)
            ins.normalized = True
