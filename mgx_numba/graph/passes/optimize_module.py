"""Repeat the simplifying passes until nothing changes."""

from __future__ import annotations

from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import DeadCodeElimination
from .eliminate_common_subexpression import EliminateCommonSubexpression
from .eliminate_convert import EliminateConvert
from .propagate_constant import PropagateConstant
from .rewriter import RulePass
from .simplify_algebra import SimplifyAlgebra
from .simplify_reshapes import SimplifyReshapes

OUTER_ROUNDS, INNER_ROUNDS = 8, 16
"""Bounds on rounds, in case rules undo each other."""


class OptimizeModule(Pass):
    """Run ``simplify_reshapes``, ``eliminate_convert`` and ``simplify_algebra``, then common subexpressions and
    constants, until a round changes nothing."""

    name = "optimize_module"

    def __init__(self) -> None:
        self.rule_passes = (SimplifyReshapes(), EliminateConvert(), SimplifyAlgebra())
        for step in self.rule_passes:
            step.log = self.log
        self.constants = PropagateConstant()
        self.common = EliminateCommonSubexpression()

    def run(self, program: Program, options: Options) -> None:
        super().run(program, options)
        DeadCodeElimination().run(program, options)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if module.optimized == (module.changes, options):
            return
        self.constants.fold(module)
        for _ in range(OUTER_ROUNDS):
            settled: set[RulePass] = set()
            for _ in range(INNER_ROUNDS):
                if not sum([self._rewrite(step, settled, module, options) for step in self.rule_passes]):
                    break
            if not self.common.share(module) + self.constants.fold(module):
                if len(settled) == len(self.rule_passes):
                    module.optimized = module.changes, options
                break

    def _rewrite(self, step: RulePass, settled: set[RulePass], module: Module, options: Options) -> int:
        """Sweep over a module by a pass of rules, unless nothing has changed since a sweep found nothing: ``settled``
        are such passes."""
        if step in settled:
            return 0
        count = step.rewrite(module, options, once=True)
        if count:
            settled.clear()
        elif not step.log.exhausted:
            settled.add(step)
        return count
