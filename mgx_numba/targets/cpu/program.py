"""Compile programs for the ``cpu`` target: run passes, lower to plans, load kernels."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from ...codegen.workers.background import BackgroundCompilation
from ...core.dim import Scope
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic
from ...graph.substitution import lengths_of
from ...interrupts import whole_module
from ...runtime.cpu.early import compile_in_background
from ...runtime.cpu.executor import Executable
from ..data_dependent_split import split
from ..lowering.job import LoweringJob
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import PASSES
from .capabilities import pass_options
from .compiled import LoweredProgram
from .lower import lower, lowering

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning
    from .choice import PlanChoice


def optimize(
    program: Program,
    options: TargetOptions,
    trace: Callable[[str, Program], None] | None = None,
    timings: MutableMapping[str, float] | None = None,
    validate: bool = False,
) -> Program:
    """Return a copy of ``program`` after the target's passes."""
    optimized = program.clone()
    run_passes(
        optimized,
        PASSES,
        pass_options(options),
        disabled=options.disabled_passes,
        trace=trace,
        timings=timings,
        validate=validate,
    )
    optimized.remove_unused_modules()
    return optimized


def compile_program(
    program: Program,
    options: TargetOptions,
    progress: Callable[[int, int, str], None] | None = None,
    weights: SharedWeights | None = None,
    known: PlanChoice | None = None,
    outer: Scope | None = None,
    by_sizes: bool = True,
) -> LoweredProgram:
    """Return a program compiled for the CPU, in stages where its lengths depend on data.

    Args:
        program: the program, which is not changed.
        options: options of the compilation.
        progress: told of the kernels that are compiled.
        weights: constants shared by all plans of the dynamic program to which ``program`` belongs.
        known: plans of a program with dynamic inputs; see `DynamicProgram`.
        outer: for a submodule, the scope of the outer program; see `OpenPlans.open`.
        by_sizes: whether stages may take sizes as lengths; see `split`.
    """
    if options.tuning is not None and options.tuning.exhaustive:
        by_sizes = False  # programs with symbolic lengths are not measured

    def compile_part(
        program: Program, weights: SharedWeights, outer: Scope | None = None, by_sizes: bool = True
    ) -> LoweredProgram:
        return compile_program(program, options, None, weights, None, outer, by_sizes)

    is_open, stages = is_dynamic(program) or bool(outer and lengths_of(program)), None
    if not is_open:
        arrays, trees = without_tuples(program)
        stages = split(arrays, True, by_sizes)
    if is_open or (stages is not None and stages.split_point.sizes > 0):
        whole_module("mgx_numba.targets.cpu.dynamic")
        from .dynamic import DynamicProgram

        return DynamicProgram(program, options, progress, compile_part, known, outer, by_sizes)
    if stages is None:
        return CpuProgram(program, options, progress, weights)
    whole_module("mgx_numba.targets.cpu.compiled")
    from .choice import PlanChoice
    from .compiled import SplitProgram

    common = weights or SharedWeights(arrays)
    tail = compile_program(stages.tail, options, progress, common, by_sizes=by_sizes)
    if stages.optional and isinstance(tail, PlanChoice) and not tail.symbolic_plans:
        return CpuProgram(program, options, progress, weights)
    head = compile_program(stages.head, options, progress, common, by_sizes=by_sizes)
    return SplitProgram(head, tail, stages.split_point, trees, lambda: arrays)


class CpuProgram(LoweredProgram):
    """A program without dynamic inputs, compiled for the CPU."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        weights: SharedWeights | None = None,
    ) -> None:
        """Compile a program; arguments as in `compile_program`."""
        with compile_in_background(options.store) as ahead:
            self._compile(program, options, progress, weights, ahead)

    def _compile(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        weights: SharedWeights | None,
        ahead: BackgroundCompilation,
    ) -> None:
        program, trees = without_tuples(program)
        optimized = optimize(program, options)
        self._log = optimized.log
        if options.tuning is not None and options.tuning.exhaustive:
            _measure(options.tuning, lambda: lower(optimized, options))

        def compile_body(body: Program, outer: None) -> LoweredProgram:
            return compile_program(body, options)

        low = lowering(LoweringJob(optimized, options, weights=weights, original=program), compile_body, ahead)
        plan, whole = low.run(), not low.draft.freed
        if options.tuning is not None:
            options.tuning.tell()
        source = optimized if whole else program.clone()
        shown = (lambda: source) if whole else _optimizing(lambda: source, options)
        executable = Executable(plan, options.num_threads or None, progress, options.store, ahead)
        super().__init__(executable, trees, shown, options.store)

    def rewrite_log(self) -> RewriteLog:
        return self._log


def _optimizing(again: Callable[[], Program], options: TargetOptions) -> Callable[[], Program]:
    """Return a function that optimises the program that ``again`` returns."""
    return lambda: optimize(without_tuples(again())[0], options)


def _measure(tuning: Tuning, ask: Callable[[], object]) -> None:
    from ..tuning import tune  # late: only needed for tuning
    from .measuring import Bench

    tune(tuning, Bench, ask)
