"""Programs with dynamic inputs, compiled for the CPU: one plan whose numbers follow from the lengths of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

import numpy as np

from ...codegen.launch import TaskRange
from ...core.dim import Guard, Scope, chosen_where, evaluate, symbols_of
from ...errors import MgxError
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import specialize
from ...graph.symbolic import symbolic_program
from ...messages import INFO, shortened, tell
from ...runtime.cpu.executor import Executable, kernels_ahead
from ...runtime.plan import Plan, Step
from ...runtime.told_lengths import with_told_lengths
from ..base import Observer, OpenPlan, Stage, ThreadSpan, Tree
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import PASSES, SOURCE_PASSES
from ..stages import split
from .capabilities import pass_options
from .choice import PlanChoice
from .compiled import LoweredProgram
from .lower import lower_symbolic
from .staged import Lens, SymbolicStages, UnservedLengths

__all__ = ["DynamicProgram"]

MOST_PLANS = 8
"""Plans with symbols of one program: more mean that some code asks a question whose answer changes all the time."""
MOST_FAILED = 16
"""Attempts at such plans that fail where a plan for one set of lengths can be made: then no more are made."""
MOST_FIXED = 16
"""Plans for one set of lengths each, of programs whose lengths cannot be symbols; the least recently used goes."""

T = TypeVar("T")
Progress = Callable[[int, int, str], None]


class DynamicProgram(PlanChoice):
    """A program with dynamic inputs, compiled for the CPU.

    One plan serves all lengths that give the guards of its compilation the answers that the example lengths gave. For
    other lengths another plan is made in the first run that meets such. Where lengths cannot be symbols, a plan is made
    for one set of lengths.
    """

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Progress | None,
        compile_fixed: Callable[[Program, SharedWeights], LoweredProgram],
    ) -> None:
        """Compile a program for all lengths within the ranges of its inputs.

        Args:
            program: it stays as it is.
            options: what was asked for.
            progress: told of the kernels that are compiled.
            compile_fixed: compiles a program without dynamic inputs.
        """
        source = program.clone()
        run_passes(source, SOURCE_PASSES, pass_options(options), disabled=options.disabled_passes)
        names = [name for name, shape in source.parameter_shapes().items() if shape.is_dynamic]
        super().__init__(names, [], {}, lambda: source, options.store)
        self._source = source
        self._options = options
        self._compile_fixed = compile_fixed
        self._weights = SharedWeights(source)
        self._lock = threading.RLock()
        self._guards: dict[LoweredProgram, list[Guard]] = {}
        self._failed = 0
        if options.tuning is not None:
            options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
        try:
            self._plans.append(self._planned(None, [], progress))
        except MgxError as error:
            tell("symbolic", INFO, "plans are made when the program runs: %s", error)

    def _planned(self, lens: Lens | None, late: Sequence[Lens], progress: Progress | None = None) -> LoweredProgram:
        """Return the program with a plan for lengths in general, or for lengths of inputs and of later stages that are
        like some.

        Raises:
            MgxError: the lengths cannot be symbols, or do not fit the program.
        """
        scope = Scope()
        program, trees = without_tuples(symbolic_program(self._source, scope, lens))
        made = self._stage(program, scope, late, trees, progress)
        scope.close()
        self._guards[made] = list(scope.guards.values())
        return made

    def _stage(
        self, program: Program, scope: Scope, late: Sequence[Lens], trees: list[Tree] | None, progress: Progress | None
    ) -> LoweredProgram:
        """Return a program whose inputs have symbolic lengths, in stages where lengths depend on data."""
        stages = split(program)
        if stages is None:
            return self._lowered(program, scope, trees, progress)
        head = self._lowered(stages.head, scope, None, progress)
        tail = symbolic_program(stages.tail, scope, late[0] if late else None)
        after = self._stage(tail, scope, late[1:], None, progress)
        return SymbolicStages(head, after, stages.seam, trees, lambda: program)

    def _lowered(
        self, program: Program, scope: Scope, trees: list[Tree] | None, progress: Progress | None
    ) -> LoweredProgram:
        options = self._options
        with kernels_ahead(options.store) as ahead:
            run_passes(program, PASSES, pass_options(options), disabled=options.disabled_passes)
            program.remove_unused_modules()
            plan = with_told_lengths(lower_symbolic(program, options, self._weights, scope, self._body, ahead))
            executable = Executable(plan, options.num_threads or None, progress, options.store, ahead)
        return LoweredProgram(executable, trees, lambda: program, options.store)

    def _body(self, program: Program) -> LoweredProgram:
        """Compile a submodule in which lengths are known when it runs."""
        return self._compile_fixed(program, SharedWeights(program))

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        found = self._serving(inputs)
        if found is None:
            with self._lock:
                found = self._serving(inputs) or self._another(inputs, [])
        return found

    def _another(self, inputs: Mapping[str, np.ndarray], late: Sequence[Lens]) -> LoweredProgram:
        """Return a plan for lengths that no plan serves."""
        found = self._fixed_plan(inputs)
        if found is not None:
            return found
        lens = {name: inputs[name].shape for name in self._names}
        failed = False
        if len(self._plans) < MOST_PLANS and self._failed < MOST_FAILED:
            tell("symbolic", INFO, "a plan is made for %s, which no plan serves: %s", lens, self._refused(inputs))
            try:
                made = self._planned(lens, late)
            except MgxError as error:
                failed = True
                tell("symbolic", INFO, "a plan is made for these lengths alone: %s", error)
            else:
                if made.serves(inputs):
                    self._first(made)
                    return made
        made = self._fixed_for(lens)
        self._failed += failed  # lengths that do not fit the program are no reason
        return made

    def _fixed_for(self, lens: Lens) -> LoweredProgram:
        """Return a plan for one set of lengths of the dynamic inputs, and keep it.

        Raises:
            MgxError: the lengths do not fit the program.
        """
        made = self._compile_fixed(specialize(self._source, lens), self._weights)
        while len(self._fixed) >= MOST_FIXED:
            self._fixed.popitem(last=False)
        self._fixed[tuple(map(tuple, lens.values()))] = made
        return made

    def _refused(self, inputs: Mapping[str, np.ndarray]) -> str:
        """Return the questions that these lengths answer otherwise than the last plan's, and who asked them."""
        if not self._plans:
            return "there is none"
        last = self._plans[0]
        values = last.symbol_values(inputs)
        if values is None:
            return "lengths that are equal in the plan differ"
        guards = (g for g in self._guards[last] if set(symbols_of([g.condition])) <= set(values))
        other = [g for g in guards if bool(evaluate(g.condition, values)) != g.answer]
        return "; ".join(f"{shortened(str(g.condition), 200)} ({g.place})" for g in other)

    def _tried(self, inputs: Mapping[str, np.ndarray], use: Callable[[LoweredProgram], T]) -> T:
        """Return the result of ``use`` for the plan of the inputs, or for the plan that a later stage needs."""
        plan = self._for(inputs)
        try:
            return use(plan)
        except UnservedLengths as error:
            with self._lock:
                plan = self._another(inputs, error.late)
        try:
            return use(plan)
        except UnservedLengths:
            with self._lock:
                plan = self._fixed_for({name: inputs[name].shape for name in self._names})
            return use(plan)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """See `LoweredProgram.run`."""
        return self._tried(inputs, lambda plan: plan.run(inputs))

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """See `LoweredProgram.observe`."""
        return self._tried(inputs, lambda plan: plan.observe(inputs, observer))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """See `Planned.stages`."""
        return self._tried(inputs, lambda plan: plan.stages(inputs))

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[Any], list[ThreadSpan]]:
        """See `Timed.timeline`."""
        return self._tried(inputs, lambda plan: plan.timeline(inputs))

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """See `LoweredProgram.trace`."""
        return self._tried(inputs, lambda plan: plan.trace(inputs, level, out))

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`: that of all plans so far."""
        log = RewriteLog()
        for program in self._parts():
            log.include(program.rewrite_log())
        return log

    def open_plans(self) -> list[OpenPlan]:
        """See `OpenPlanned`; the stages of a plan one by one."""
        return [
            _shown(part.executable.plan, self._guards[plan])
            for plan in self._plans
            for part in plan._all()
            if part.executable is not None
        ]


def _shown(plan: Plan, guards: Sequence[Guard]) -> OpenPlan:
    symbols = tuple([f"{s} {s.low or 0} to {'any' if s.high is None else s.high}" for s in plan.symbols])
    answers = tuple([f"{shortened(str(g.condition), 200)}: {g.answer} ({g.place})" for g in guards])
    alternatives = [
        f"{step.label}, where {shortened(str(condition), 200)}"
        for step in plan.steps
        if isinstance(step, Step) and isinstance(step.geometry, TaskRange)
        for condition in chosen_where(step.geometry.tasks)
    ]
    return OpenPlan(symbols, answers, len(plan.steps), tuple(alternatives))
