"""Compile programs with dynamic inputs for the CPU: symbolic plans, whose numbers follow from the lengths of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from ...core.dim import Scope
from ...graph.passes import run_passes
from ...graph.program import Program
from ...runtime.cpu.early import compile_in_background
from ...runtime.cpu.executor import Executable
from ...runtime.explicit_lengths import with_explicit_lengths
from ..base import Progress, ThreadSpan, Tree
from ..dynamic import OpenPlans, source_of
from ..lowering.job import LoweringJob
from ..lowering.shared_weights import SharedWeights
from ..options import TargetOptions
from ..passes import PASSES
from ..split_point import SplitPoint
from .capabilities import pass_options
from .choice import PlanChoice
from .compiled import CpuSymbolicSplit, LoweredProgram
from .lower import lowering


class Unserved(LoweredProgram):
    """A last stage whose plan is made with the sizes of the first run; see `OpenPlans.by_sizes`."""

    def serves(self, inputs: Mapping[str, np.ndarray]) -> bool:
        return False

    def kept_plan(self) -> None:
        return None


class DynamicProgram(OpenPlans[LoweredProgram], PlanChoice):
    """A program with dynamic inputs, compiled for the CPU; see `OpenPlans`."""

    on_host: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Progress | None,
        compile_part: Callable[..., LoweredProgram],
        known: PlanChoice | None = None,
        outer: Scope | None = None,
        by_sizes: bool = True,
    ) -> None:
        """Compile a program, see `OpenPlans.open`; ``compile_part`` compiles the program for fixed lengths, or a
        submodule: arguments are the program, shared constants, and the last two as here."""
        source = source_of(program, options, pass_options(options))
        # The function must not hold the program: a reference cycle would keep plans and weights of a dropped program.
        PlanChoice.__init__(self, [], [], {}, lambda: source, options.store)
        self._options = options
        self._compile_part = compile_part
        self.by_sizes = by_sizes
        self.open(source, options, progress, known, outer)

    def _lowered(
        self,
        program: Program,
        scope: Scope,
        trees: list[Tree] | None,
        progress: Progress | None,
        later: Program | None = None,
    ) -> LoweredProgram:
        options = self._options
        with compile_in_background(options.store) as ahead:
            run_passes(program, PASSES, pass_options(options), disabled=options.disabled_passes)
            program.remove_unused_modules()
            job = LoweringJob(program, options, scope, self._weights)
            plan = lowering(job, self._body, ahead).run()
            plan = with_explicit_lengths(plan, self._used_lengths(program, later))
            executable = Executable(plan, options.num_threads or None, progress, options.store, ahead)
        return LoweredProgram(executable, trees, lambda: program, options.store)

    def _in_two(
        self,
        head: LoweredProgram,
        tail: LoweredProgram,
        split_point: SplitPoint,
        trees: list[Tree] | None,
        whole: Program,
    ) -> LoweredProgram:
        return CpuSymbolicSplit(head, tail, split_point, trees, lambda: whole)

    def _without_plan(self) -> LoweredProgram:
        return Unserved(None, None, self._optimized)

    def _with_fixed_lengths(self, program: Program) -> LoweredProgram:
        return self._compile_part(program, self._weights, None, False)

    def _body(self, program: Program, outer: Scope | None) -> LoweredProgram:
        """Compile a submodule whose lengths are known only when it runs; ``outer``: see `OpenPlans.open`."""
        return self._compile_part(program, SharedWeights(program), outer)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[object]:
        return self._tried(inputs, lambda plan: plan.run(inputs))

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[object], list[ThreadSpan]]:
        return self._tried(inputs, lambda plan: plan.timeline(inputs))
