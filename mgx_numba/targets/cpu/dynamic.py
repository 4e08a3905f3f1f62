"""Programs with dynamic inputs, compiled for the CPU: one plan whose numbers follow from the lengths of a run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TextIO, TypeVar

import numpy as np

from ...codegen.launch import TaskRange
from ...core.dim import Dim, Guard, Scope, chosen_where, evaluate, symbols_of
from ...errors import MgxError
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import specialize
from ...graph.symbolic import symbolic_program
from ...messages import INFO, shortened, tell
from ...runtime.cpu.executor import Executable
from ...runtime.plan import Plan, Step
from ...runtime.told_lengths import told_lengths, with_told_lengths
from ..base import Direct, Observer, OpenPlan, Stage, ThreadSpan, Tree
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import PASSES, SOURCE_PASSES
from ..stages import Seam, split
from .capabilities import pass_options
from .compiled import LoweredProgram
from .lower import lower_symbolic
from .staged import StagedProgram

__all__ = ["DynamicProgram"]

MOST_PLANS = 8
"""Plans with symbols of one program: more mean that some code asks a question whose answer changes all the time."""
MOST_FAILED = 16
"""Attempts at such plans that fail where a plan for one set of lengths can be made: then no more are made."""
MOST_FIXED = 16
"""Plans for one set of lengths each, of programs whose lengths cannot be symbols; the least recently used goes."""

T = TypeVar("T")
Lens = Mapping[str, Sequence[int]]
Progress = Callable[[int, int, str], None]


class UnservedLengths(Exception):
    """A stage's plan does not serve lengths that the stages before it have found: ``late`` has them, stage by stage."""

    def __init__(self, late: list[Lens]) -> None:
        super().__init__("lengths that no plan serves")
        self.late = late


class DynamicProgram(LoweredProgram):
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
        super().__init__(None, None, lambda: source, options.store)
        self._source = source
        self._options = options
        self._compile_fixed = compile_fixed
        self._weights = SharedWeights(source)
        self._names = [name for name, shape in source.parameter_shapes().items() if shape.is_dynamic]
        self._lock = threading.RLock()
        self._guards: dict[LoweredProgram, list[Guard]] = {}
        self._plans: list[LoweredProgram] = []
        self._failed = 0
        self._fixed: OrderedDict[tuple[tuple[int, ...], ...], LoweredProgram] = OrderedDict()
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
        return _SymbolicStages(head, after, stages.seam, trees, program)

    def _lowered(
        self, program: Program, scope: Scope, trees: list[Tree] | None, progress: Progress | None
    ) -> LoweredProgram:
        options = self._options
        run_passes(program, PASSES, pass_options(options), disabled=options.disabled_passes)
        program.remove_unused_modules()
        plan = with_told_lengths(lower_symbolic(program, options, self._weights, scope, self._body))
        executable = Executable(plan, options.num_threads or None, progress, options.store)
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

    def _serving(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram | None:
        for number, plan in enumerate(self._plans):
            if plan.serves(inputs):
                if number:
                    self._first(plan)
                return plan
        return None

    def _first(self, plan: LoweredProgram) -> None:
        """Have a plan asked first."""
        self._plans = [plan, *(other for other in self._plans if other is not plan)]

    def _another(self, inputs: Mapping[str, np.ndarray], late: Sequence[Lens]) -> LoweredProgram:
        """Return a plan for lengths that no plan serves."""
        lens = {name: inputs[name].shape for name in self._names}
        key = tuple(lens.values())
        if key in self._fixed:
            self._fixed.move_to_end(key)
            return self._fixed[key]
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

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[Direct | None], None] | None = None
    ) -> Direct | None:
        """As `LoweredProgram.direct`: the plans' own functions in turn, each of which looks whether it serves."""
        preferred: Direct | None = None

        def for_lengths(inputs: Any) -> list[Any] | None:
            nonlocal preferred
            for number, plan in enumerate(self._plans):
                entry = plan.direct(result_type)
                found = None if entry is None else entry(inputs)
                if found is None:
                    continue
                if number:
                    self._first(plan)
                if prefer is not None and preferred is not entry:
                    preferred = entry
                    prefer(entry)
                return found
            return None

        return for_lengths

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

    def _parts(self) -> list[LoweredProgram]:
        return [*self._plans, *self._fixed.values()]


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


class _SymbolicStages(StagedProgram):
    """Two stages of a program with symbols; the second has symbols for lengths that the first one finds, too."""

    def __init__(
        self, head: LoweredProgram, tail: LoweredProgram, seam: Seam, trees: list[Tree] | None, whole: Program
    ) -> None:
        """``trees`` groups the results of ``whole``, which is shown."""
        LoweredProgram.__init__(self, None, trees, lambda: whole)
        self._head, self._tail, self._seam = head, tail, seam

    def serves(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Return whether the first stage serves the inputs; the second stage is asked in the run."""
        return self._head.serves(inputs)

    def symbol_values(self, inputs: Mapping[str, np.ndarray]) -> dict[Dim, int] | None:
        """See `LoweredProgram.symbol_values`: of the symbols that are known before the run."""
        return self._head.symbol_values(inputs)

    def first_plan(self) -> Plan:
        """See `LoweredProgram.first_plan`."""
        return self._head.first_plan()

    def _in_stages(self, inputs: Mapping[str, Any], run: Callable[[Any, Mapping[str, Any]], list[Any]]) -> list[Any]:
        return self._seam.run(inputs, partial(run, self._head), lambda given: self._later(inputs, given, run))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """See `Planned.stages`."""
        return self._seam.stages(inputs, self._head, _Later(partial(self._later, inputs)))

    def _later(self, inputs: Mapping[str, Any], given: Mapping[str, Any], use: Callable[[Any, Any], T]) -> T:
        """Return what ``use`` gives for the second stage and its inputs, with the lengths of those of the first.

        Raises:
            UnservedLengths: the second stage's plan does not serve them.
        """
        values = self._head.symbol_values(inputs)
        assert values is not None
        lens: Lens = {name: value.shape for name, value in given.items()}
        told = {**given, **told_lengths(self._tail.first_plan(), values)}
        if not self._tail.serves(told):
            raise UnservedLengths([lens])
        try:
            return use(self._tail, told)
        except UnservedLengths as error:
            raise UnservedLengths([lens, *error.late]) from None


class _Later:
    """A later stage as `Seam.stages` wants it: ``use`` calls a function of it and its inputs."""

    def __init__(self, use: Callable[[Mapping[str, Any], Callable[[Any, Any], Any]], Any]) -> None:
        self._use = use

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Run the stage."""
        return self._use(inputs, lambda stage, told: stage.run(told))  # type: ignore[no-any-return]

    def stages(self, inputs: Mapping[str, Any]) -> list[Stage]:
        """See `Planned.stages`."""
        return self._use(inputs, lambda stage, told: stage.stages(told))  # type: ignore[no-any-return]
