"""The simplifying passes, repeated until they find nothing more."""

from __future__ import annotations

from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import DeadCodeElimination
from .eliminate_common_subexpression import EliminateCommonSubexpression
from .eliminate_convert import EliminateConvert
from .propagate_constant import PropagateConstant
from .simplify_algebra import SimplifyAlgebra
from .simplify_reshapes import SimplifyReshapes

__all__ = ["OptimizeModule"]

OUTER_ROUNDS = 3
INNER_ROUNDS = 4


class OptimizeModule(Pass):
    """Rounds of ``simplify_reshapes``, ``eliminate_convert`` and ``simplify_algebra``, then common subexpressions and
    constants, until a round changes nothing.
    """

    name = "optimize_module"

    def __init__(self) -> None:
        self.rule_passes = (SimplifyReshapes(), EliminateConvert(), SimplifyAlgebra())
        self.fold = PropagateConstant()
        self.share = EliminateCommonSubexpression()

    def run(self, program: Program, options: Options) -> None:
        super().run(program, options)
        DeadCodeElimination().run(program, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.fold.apply(program, module, options)
        for _ in range(OUTER_ROUNDS):
            changes = 0
            for _ in range(INNER_ROUNDS):
                count = sum(step.rewrite(module, options) for step in self.rule_passes)
                changes += count
                if not count:
                    break
            self.share.apply(program, module, options)
            self.fold.apply(program, module, options)
            if not changes:
                break
