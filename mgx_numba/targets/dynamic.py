"""Programs with dynamic inputs: symbolic plans, whose numbers follow from the lengths of a run, for any target with
plans."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..codegen.launch import Grid, TaskRange
from ..core.device_array import lens_of
from ..core.dim import (
    Dim,
    Guard,
    Scope,
    SymbolicLengthError,
    UnfollowedLengthError,
    chosen_where,
    evaluate,
    shared_space,
    symbols_of,
)  # fmt: skip
from ..errors import MgxError
from ..garbage import uncollected
from ..graph.passes import Options, run_passes
from ..graph.program import Program
from ..graph.rewrite_log import RewriteLog
from ..graph.specialize import specialize
from ..graph.substitution import lengths_of, settled
from ..graph.symbolic import symbolic_program
from ..messages import INFO, shortened, tell
from ..runtime.explicit_lengths import explicit_name
from ..runtime.plan import Plan, Step
from .base import Inputs, Kept, Observer, OpenPlan, Progress, Stage, Tree
from .data_dependent_split import split
from .lowering.shared_weights import SharedWeights
from .lowering.tuples import without_tuples
from .options import TargetOptions
from .passes import SOURCE_PASSES
from .serving_plans import ServingPlans
from .split_point import SplitPoint, size_array
from .symbolic_split import Lens, UnservedLengths

MOST_PLANS = 8
"""Maximum number of symbolic plans of a program: more mean that some code has a guard whose answer changes all the
time."""
MOST_FAILED = 16
"""Number of failed attempts at a symbolic plan, for lengths that a plan with fixed lengths serves. After these no
further symbolic plan is tried."""
MOST_UNFIT = 4
"""Number of failed attempts at a plan that takes sizes as lengths, such as those of an empty slice. After these,
fallback steps serve sizes that no plan serves."""
MOST_FIXED = 16
"""Maximum number of plans with fixed lengths, for programs whose lengths cannot be symbols; the least recently used
plan is dropped."""

T = TypeVar("T")
BRANCHES = [size_array(np.array(condition)).shape for condition in (True, False)]
"""Lengths that stand for a condition in `ProgramSplit.condition`."""


def source_of(program: Program, options: TargetOptions, settings: Options) -> Program:
    """Return the copy of a program from which its plans are made."""
    source = program.clone()
    run_passes(source, SOURCE_PASSES, settings, disabled=options.disabled_passes)
    return source


class OpenPart(Protocol):
    """A compiled program with one symbolic plan, or with one for each of its stages."""

    def serves(self, inputs: Inputs) -> bool:
        """Return whether the plan's guards hold for the inputs' lengths."""

    def symbol_values(self, inputs: Inputs) -> dict[Dim, int] | None:
        """Return the values of the plan's symbols; None if the inputs' lengths do not match the parameters' symbolic
        shapes."""

    def first_plan(self) -> Plan:
        """Return the plan that takes the program's inputs."""

    def own_plans(self) -> list[Plan]:
        """Return the plans of all stages."""

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`."""

    def kept_plan(self) -> Kept | None:
        """See `Compiled.kept_plan`."""

    def observe(self, inputs: Inputs, observer: Observer) -> list[object]:
        """See `Compiled.observe`."""

    def stages(self, inputs: Inputs) -> list[Stage]:
        """See `Planned.stages`."""


P = TypeVar("P", bound=OpenPart)


class OpenPlans(ServingPlans[P], ABC):
    """The plans of a program with dynamic inputs.

    A symbolic plan serves all lengths that answer its guards as the example lengths of its compilation did. For other
    lengths the first run makes another plan. Where lengths cannot be symbols, a plan with fixed lengths is made.
    """

    on_host: ClassVar[bool] = False
    """Whether the target computes on the host; see `split`."""
    by_sizes = False
    """Whether stages may take sizes as lengths; see `split`."""

    def open(
        self,
        source: Program,
        options: TargetOptions,
        progress: Progress | None,
        known: ServingPlans[P] | None = None,
        outer: Scope | None = None,
    ) -> None:
        """Compile a program for all lengths within the ranges of its inputs.

        Args:
            source: the program, as of `source_of`.
            options: options of the compilation.
            progress: told of the kernels that are compiled.
            known: the plans that a file had for the program. Nothing is compiled until a run needs another plan.
            outer: for a submodule, the scope of the outer program. A run gives the values of its symbols that are in
                the submodule as inputs: arrays as of `explicit_lengths`.
        """
        self._source = source
        self._weights = SharedWeights(source)
        self._outer = outer
        self._explicit = {symbol: explicit_name(symbol) for symbol in symbols_of(lengths_of(source))} if outer else {}
        self._names = [name for name, shape in source.parameter_shapes().items() if shape.is_dynamic]
        self._names += self._explicit.values()
        self._making = threading.RLock()
        self._started: P | None = None  # its last stage has no plan
        self._waits = False
        self._condition: str | None = None  # of the first split, see `ProgramSplit`
        self._whole_plans: list[P] = []
        self._guards: dict[P, list[Guard]] = {}
        self.symbolic_plans: list[P] = []
        self.failed_plans = 0
        self.fixed_plans: OrderedDict[tuple[tuple[int, ...], ...], P] = OrderedDict()
        if options.tuning is not None:
            options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
        if known is not None:
            self.symbolic_plans, self.fixed_plans = list(known.symbolic_plans), OrderedDict(known.fixed_plans)
            return
        try:
            self.symbolic_plans.append(self.make_plan(None, [], progress))
            if self._condition and self._started is None:
                self.symbolic_plans.append(self.make_plan(None, [{self._condition: BRANCHES[1]}], progress))
        except MgxError as error:
            tell("symbolic", INFO, "plans are made when the program runs: %s", error)

    @abstractmethod
    def _lowered(
        self,
        program: Program,
        scope: Scope,
        trees: list[Tree] | None,
        progress: Progress | None,
        later: Program | None = None,
    ) -> P:
        """Return a program with symbolic lengths, after the passes and lowering; ``later`` is that of later stages."""

    def _used_lengths(self, program: Program, later: Program | None) -> Callable[[], list[Dim]] | None:
        """Return what `with_explicit_lengths` takes for a stage: a function of the lengths in it and in later stages.

        None for a submodule: its plans take all symbols that the outer plan gives.
        """
        if self._outer is not None:
            return None
        return lambda: [length for one in (program, later) if one is not None for length in lengths_of(one)]

    @abstractmethod
    def _in_two(self, head: P, tail: P, split_point: SplitPoint, trees: list[Tree] | None, whole: Program) -> P:
        """Return the program that runs the stages ``head`` and ``tail``; ``trees`` groups the results of ``whole``, the
        program shown to users."""

    def _without_plan(self) -> P:
        """Return a last stage that serves no lengths, for targets that set `by_sizes`."""
        raise NotImplementedError

    @abstractmethod
    def _with_fixed_lengths(self, program: Program) -> P:
        """Return a program without dynamic inputs, compiled."""

    def make_plan(self, lens: Lens | None, late: Sequence[Lens], progress: Progress | None = None) -> P:
        """Return the program with a symbolic plan.

        Args:
            lens: example lengths of the inputs; None: examples from the ranges.
            late: example lengths of the inputs of each later stage.
            progress: told of the kernels that are compiled.

        Raises:
            MgxError: the lengths cannot be symbols, or do not fit the program.
        """
        try:
            return self._symbolic_plan(lens, late, progress, False)
        except UnfollowedLengthError:
            if not self.by_sizes:
                raise
            return self._symbolic_plan(lens, late, progress, True)

    def _symbolic_plan(
        self, lens: Lens | None, late: Sequence[Lens], progress: Progress | None, computed_lengths: bool
    ) -> P:
        """See `make_plan`; for ``computed_lengths`` see `symbolic_program`."""
        self._started = None
        with Scope(shared_space() if self._outer is None else self._outer.space) as scope:
            if self._outer is not None:
                hints = self._outer.hints() if lens is None else self._outer_lengths(lens)
                scope.adopt(self._outer, {symbol: hints[symbol] for symbol in self._explicit})
            program, trees = without_tuples(symbolic_program(self._source, scope, lens, computed_lengths))
            made = self._stage(program, scope, late, trees, progress, computed_lengths)
        self._guards[made] = list(scope.guards.values())
        if self._waits:
            self._waits, self._started = False, made
        return made

    def _stage(
        self,
        program: Program,
        scope: Scope,
        late: Sequence[Lens],
        trees: list[Tree] | None,
        progress: Progress | None,
        computed_lengths: bool = False,
    ) -> P:
        """Return a program whose inputs have symbolic lengths, compiled in stages where lengths depend on data.

        Raises:
            SymbolicLengthError: with ``computed_lengths``, stages are not worthwhile: plans for fixed lengths are.
        """
        stages = split(program, self.on_host, self.by_sizes)
        if stages is None and computed_lengths:
            raise SymbolicLengthError("lengths that a run computes would need fallback steps")
        if stages is None:
            return self._lowered(program, scope, trees, progress)
        head = self._lowered(stages.head, scope, None, progress, stages.tail)
        by_sizes = stages.split_point.sizes > 0
        ranks = {name: shape.rank for name, shape in stages.tail.parameter_shapes().items()}
        fits = late and all(name in ranks and ranks[name] in (None, len(lens)) for name, lens in late[0].items())
        late = late if fits else ()
        self._condition = stages.condition if self._condition is None else self._condition
        example = {stages.condition: BRANCHES[0]} if stages.condition else None
        try:
            with scope.tentative():
                tail = symbolic_program(stages.tail, scope, late[0] if late else example)
                after = self._stage(tail, scope, late[1:], None, progress)
        except MgxError as error:
            if by_sizes and not late:  # sizes depend on each other: those of a run fit
                tell("symbolic", INFO, "a later plan is made when the program runs: %s", error)
                after, self._waits = self._without_plan(), True
            elif not stages.optional or by_sizes:
                raise
            else:
                return self._lowered(program, scope, trees, progress)
        return self._in_two(head, after, stages.split_point, trees, program)

    def _for(self, inputs: Inputs) -> P:
        found = self._serving(inputs)
        if found is None:
            with self._making:
                found = self._serving(inputs) or self._another(inputs, [])
        return found

    @uncollected()
    def _another(self, inputs: Inputs, late: Sequence[Lens]) -> P:
        """Make and return a plan for lengths that no plan serves: a symbolic plan, else a plan with fixed lengths."""
        found = self._fixed_plan(inputs)
        if found is not None:
            return found
        lens = {name: lens_of(inputs[name]) for name in self._names}
        failed, started = False, self._started
        by_sizes = bool(late) and self.by_sizes
        if by_sizes and (len(self.symbolic_plans) >= MOST_PLANS or self.failed_plans >= MOST_UNFIT):
            return self._whole(inputs)
        if len(self.symbolic_plans) < MOST_PLANS and self.failed_plans < MOST_FAILED:
            tell("symbolic", INFO, "a plan is made for %s, which no plan serves: %s", lens, self._refused(inputs))
            try:
                made = self.make_plan(lens, late)
            except MgxError as error:
                failed = True
                if by_sizes:
                    self.failed_plans += 1
                    return self._whole(inputs)
                tell("symbolic", INFO, "a plan is made for these lengths alone: %s", error)
            else:
                if made.serves(inputs):
                    self._first(made)
                    if late and started is not None:
                        self.symbolic_plans.remove(started)
                        self._kept_count = 0
                    self._grown()
                    return made
        made = self.fixed_plan_for(lens)
        self.failed_plans += failed  # not counted if `fixed_plan_for` raises: the lengths do not fit the program
        return made

    def _whole(self, inputs: Inputs) -> P:
        """Return a plan that does not take sizes as lengths, made if there is none, for inputs with sizes that no plan
        serves."""
        for plan in self._whole_plans:
            if plan.serves(inputs):
                return plan
        lens, self.by_sizes = {name: lens_of(inputs[name]) for name in self._names}, False
        try:
            made = self.make_plan(lens, []) if len(self._whole_plans) < MOST_PLANS else None
        except MgxError:
            made = None
        finally:
            self.by_sizes = True
        if made is None or not made.serves(inputs):
            return self.fixed_plan_for(lens)
        self._whole_plans.append(made)
        return made

    @uncollected()
    def fixed_plan_for(self, lens: Lens) -> P:
        """Make, keep and return a plan for one set of lengths of the dynamic inputs.

        Raises:
            MgxError: the lengths do not fit the program.
        """
        values = self._outer_lengths(lens)
        made = self._with_fixed_lengths(specialize(settled(self._source, values) if values else self._source, lens))
        while len(self.fixed_plans) >= MOST_FIXED:
            self.fixed_plans.popitem(last=False)
        self.fixed_plans[tuple(map(tuple, lens.values()))] = made
        self._grown()
        return made

    def _outer_lengths(self, lens: Lens) -> dict[Dim, int]:
        """Return the values of the outer program's symbols among the lengths of a run's inputs."""
        return {symbol: lens[name][0] for symbol, name in self._explicit.items() if name in lens}

    def _refused(self, inputs: Inputs) -> str:
        """Return the guards of the last used plan that the inputs' lengths do not satisfy, with their places in the
        code."""
        if not self.symbolic_plans:
            return "there is none"
        last = self.symbolic_plans[0]
        values = last.symbol_values(inputs)
        if values is None:
            return "lengths that are equal in the plan differ"
        guards = (g for g in self._guards.get(last, ()) if set(symbols_of([g.condition])) <= set(values))
        other = [g for g in guards if bool(evaluate(g.condition, values)) != g.answer]
        return "; ".join(f"{shortened(str(g.condition), 200)} ({g.place})" for g in other)

    def _tried(self, inputs: Inputs, use: Callable[[P], T]) -> T:
        """Return the result of ``use`` for the plan that serves the inputs, or for a new plan if a later stage's
        lengths need another."""
        late: list[Lens] = []
        for plan in self._candidates(inputs):
            try:
                found = use(plan)
            except UnservedLengths as error:
                late = error.late
                continue
            if late:
                self._first(plan)
            return found
        with self._making:
            plan = self._another(inputs, late)
        with contextlib.suppress(UnservedLengths):
            return use(plan)
        with self._making:
            if plan in self.symbolic_plans:
                self.symbolic_plans.remove(plan)
            if self.by_sizes and plan not in self._whole_plans:
                self.failed_plans += 1
                plan = self._whole(inputs)
                with contextlib.suppress(UnservedLengths):
                    return use(plan)
            plan = self.fixed_plan_for({name: lens_of(inputs[name]) for name in self._names})
        return use(plan)

    def _candidates(self, inputs: Inputs) -> Iterator[P]:
        """Yield the plan that runs such lengths first, made if there is none; then others that serve the lengths."""
        first = self._for(inputs)
        yield first
        yield from [plan for plan in self.symbolic_plans if plan is not first and plan.serves(inputs)]

    def observe(self, inputs: Inputs, observer: Observer) -> list[object]:
        return self._tried(inputs, lambda plan: plan.observe(inputs, observer))

    def stages(self, inputs: Inputs) -> list[Stage]:
        return self._tried(inputs, lambda plan: plan.stages(inputs))

    def rewrite_log(self) -> RewriteLog:
        """Return the rewrite log of all plans made so far; see `Compiled.rewrite_log`."""
        log = RewriteLog()
        for program in self._parts():
            log.include(program.rewrite_log())
        return log

    def open_plans(self) -> list[OpenPlan]:
        """Return a description of each stage of each symbolic plan; see `OpenPlanned`."""
        return [_shown(plan, self._guards.get(part, [])) for part in self.symbolic_plans for plan in part.own_plans()]


def _shown(plan: Plan, guards: Sequence[Guard]) -> OpenPlan:
    symbols = tuple([f"{s} {s.low or 0} to {'any' if s.high is None else s.high}" for s in plan.symbols])
    answers = tuple([f"{shortened(str(g.condition), 200)}: {g.answer} ({g.place})" for g in guards])
    alternatives = [
        f"{step.label}, where {shortened(str(condition), 200)}"
        for step in plan.steps
        if isinstance(step, Step)
        for condition in _conditions(step)
    ]
    return OpenPlan(symbols, answers, len(plan.steps), tuple(alternatives))


def _conditions(step: Step) -> list[Dim]:
    """Return the conditions under which a step has tasks."""
    counts: tuple[Any, ...] = ()
    if isinstance(step.geometry, TaskRange):
        counts = (step.geometry.tasks,)
    elif isinstance(step.geometry, Grid):
        counts = step.geometry.blocks
    return list(dict.fromkeys([condition for count in counts for condition in chosen_where(count)]))
