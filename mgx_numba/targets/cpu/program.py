"""Programs compiled for the ``cpu`` target: passes run, lowered to plans, kernels loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.cpu.backend import BACKEND
from ...codegen.cpu.toolchain.loader import load
from ...codegen.kernel import KernelSource
from ...environment import environment_flag
from ...errors import MgxError
from ...garbage import uncollected
from ...graph.copies import Numbered
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic
from ...messages import INFO, tell, warn
from ...runtime.cpu.executor import EXECUTOR_KERNELS, Executable
from ...runtime.cpu.threads import resolve_num_threads
from ...runtime.plan import Plan
from .. import kernel_lists
from ..base import Direct
from ..lowering.shared import Shared, release
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import BY_SIZE, PASSES, SOURCE_PASSES
from ..samples import Lens, is_optimal, sample_lengths
from ..settled import settling
from ..stages import split
from ..tracing import is_watched
from .capabilities import pass_options
from .compiled import LoweredProgram, kernels_of
from .lower import lower, lower_and_release
from .staged import StagedProgram
from .symbolic import SymbolicProgram

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["CpuProgram", "DynamicProgram", "compile_program", "optimize"]

ENOUGH = 14
"""Sets of lengths in succession that needed no kernel that others before them had not needed: no more are tried."""
ENOUGH_LATER = 2
"""The same, for a stage whose lengths depend on data, at each set of lengths of the inputs."""

MOST_PLANS = 256
"""Plans that a program with dynamic inputs keeps; the least recently used goes when another set of lengths comes."""
MOST_BYTES = 1 << 29
"""Of the arenas of these plans together, so that long inputs leave room for fewer."""
LAST = 4
"""Plans that are kept whatever they take."""


def optimize(
    program: Program,
    options: TargetOptions,
    trace: Callable[[str, Program], None] | None = None,
    timings: MutableMapping[str, float] | None = None,
    validate: bool = False,
) -> Program:
    """A copy of ``program`` after the target's passes."""
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


def _optimized(
    program: Program, options: TargetOptions, shared: Shared | None, numbered: Numbered | None = None
) -> Program:
    """As `optimize`; of what was done for other lengths the most is replayed. ``numbered`` is the program where its
    numbers are known."""
    if shared is None or is_watched():
        return optimize(program, options)
    optimized = shared.passes.run(numbered or Numbered.of(program))
    run_passes(optimized, BY_SIZE, pass_options(options), disabled=options.disabled_passes)
    return optimized


def _shared(program: Program, options: TargetOptions) -> Shared:
    """What plans of a program for its lengths have in common."""
    settings = pass_options(options)
    passes = [name for name in PASSES if name not in BY_SIZE]

    def rewrite(settled: Program) -> None:
        run_passes(settled, passes, settings, disabled=options.disabled_passes)
        settled.remove_unused_modules()

    return Shared.of(program, rewrite)


def compile_program(
    program: Program,
    options: TargetOptions,
    progress: Callable[[int, int, str], None] | None = None,
    shared: Shared | None = None,
    compiled_only: bool = False,
    again: Callable[[], Program] | None = None,
    enough: int = ENOUGH,
    numbered: Numbered | None = None,
) -> LoweredProgram:
    """A program compiled for the CPU, in stages where its lengths depend on data.

    Args:
        program: it stays as it is.
        options: what was asked for.
        progress: told of the kernels that are compiled.
        shared: what plans have in common that are made of the dynamic program that this one is a case, or a part, of.
        compiled_only: compile nothing.
        again: gives the program again, when somebody wants to see what became of it: it is not kept.
        enough: sets of lengths in succession that needed no kernel that others before them had not needed.
        numbered: the program itself, if its numbers are known.
    """
    if is_dynamic(program):
        return _dynamic(program, options, progress, shared, compiled_only, enough)
    arrays, trees = without_tuples(program)
    stages = split(arrays)
    if stages is None:
        return CpuProgram(program, options, progress, shared, compiled_only, again, numbered)
    common = shared or _shared(arrays, options)

    def compiled(stage: Program) -> LoweredProgram:
        return compile_program(stage, options, progress, common, compiled_only)

    return StagedProgram(stages, compiled, trees, arrays)


def _dynamic(
    program: Program,
    options: TargetOptions,
    progress: Callable[[int, int, str], None] | None,
    shared: Shared | None,
    compiled_only: bool,
    enough: int,
) -> LoweredProgram:
    """A program with dynamic inputs, with one plan for all lengths if it can be compiled so."""

    def otherwise() -> LoweredProgram:
        return DynamicProgram(program, options, progress, shared, compiled_only, enough)

    if compiled_only or environment_flag("MGX_OLD"):
        return otherwise()
    source = program.clone()
    run_passes(source, SOURCE_PASSES, pass_options(options), disabled=options.disabled_passes)
    try:
        return SymbolicProgram(source, options, progress, otherwise)
    except Exception as error:
        if environment_flag("MGX_STRICT"):
            raise
        tell("symbolic", INFO, "a plan is made for each set of lengths: %s", error)
        return otherwise()


class CpuProgram(LoweredProgram):
    """A program whose inputs have lengths, compiled for the CPU."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        shared: Shared | None = None,
        compiled_only: bool = False,
        again: Callable[[], Program] | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        """Arguments are those of `compile_program`."""
        program, trees = without_tuples(program)
        optimized = _optimized(program, options, shared, numbered if trees is None else None)
        self._log = optimized.log
        if options.tuning is not None and options.tuning.exhaustive:
            _measure(options.tuning, lambda: lower(optimized, options))
        later = partial(compile_program, options=options, compiled_only=compiled_only)
        plan, whole = lower_and_release(optimized, options, program, shared, compiled_only, later=later)
        if options.tuning is not None:
            options.tuning.tell()
        if again is not None:
            shown = _optimizing(again, options)
            release(optimized, plan)
        else:
            source = optimized if whole else program.clone()
            shown = (lambda: source) if whole else _optimizing(lambda: source, options)
        executable = Executable(plan, options.num_threads or None, progress, options.store)
        super().__init__(executable, trees, shown, options.store)

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`."""
        return self._log


class DynamicProgram(LoweredProgram):
    """A program with dynamic inputs, compiled for the CPU: it gets a plan for each set of lengths it meets.

    Its kernels are made when it is compiled, for lengths that stand for the ranges. A plan that is made in a run takes
    no other kernels: it computes in another way, in host steps if need be, what would take them.
    """

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        shared: Shared | None = None,
        compiled_only: bool = False,
        enough: int = ENOUGH,
    ) -> None:
        """Arguments are those of `compile_program`."""
        source = program.clone()
        run_passes(source, SOURCE_PASSES, pass_options(options), disabled=options.disabled_passes)
        super().__init__(None, None, lambda: source, options.store)
        self._options = options
        self._source = source
        self._names = [name for name, shape in source.parameter_shapes().items() if shape.element is None]
        self._settled = settling(source, options, pass_options(options))
        self._shared = shared or _shared(source, options)
        self._specialized: OrderedDict[tuple[tuple[int, ...], ...], LoweredProgram] = OrderedDict()
        self._lock = threading.Lock()
        self._compiled: dict[KernelSource, KernelSource] = {}
        self._compiled_only = True
        self._spare: dict[KernelSource, None] = {}
        self._usual: list[np.ndarray] = []
        if options.tuning is not None:
            options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
        if not compiled_only:
            self._compile_kernels(progress, enough)

    def _compile_kernels(self, progress: Callable[[int, int, str], None] | None, enough: int) -> None:
        """Compile what lengths within the ranges may need."""
        source, options = self._source, self._options
        threads = resolve_num_threads(options.num_threads or None)
        known = kernel_lists.find(source, options, BACKEND, threads)
        plans = self._sample_plans(source, enough, telling=known is not None)  # passes are traced in any case
        usual = next(plans, None)
        if usual is not None:
            self._usual = usual.constants  # weights stay packed, for the first run's sake
        if known is not None:
            self._compiled = {kernel: kernel for kernel in known}
            for _ in plans:
                pass
        elif usual is not None:
            for plan in (usual, *plans):
                self._compiled = {**kernels_of([plan]), **self._compiled}
            self._compiled = {**{kernel: kernel for kernel in self._spare}, **self._compiled}
            kernel_lists.keep(source, options, BACKEND, threads, self._compiled.values())
        else:  # it runs on few lengths only, such as a network whose last layer wants so many pixels
            self._compiled_only = False
            names = ", ".join(name for name, shape in source.parameter_shapes().items() if shape.is_dynamic)
            warn(
                f"no lengths that were tried for {names} fit the program, so kernels are compiled when it runs first:"
                " give its dimensions optimal values",
                RuntimeWarning,
            )
        load([*self._compiled, *EXECUTOR_KERNELS], progress, options.store)

    def _sample_plans(self, program: Program, enough: int, telling: bool = False) -> Iterator[Plan]:
        """Plans for lengths that stand for the ranges of a dynamic program's inputs, until ``enough`` in succession
        have no kernel that those before had not; ``telling`` as for `sample_lengths`."""
        settled_for = (
            self._settled if program is self._source else settling(program, self._options, pass_options(self._options))
        )
        known: set[KernelSource] = set()
        refused: list[Lens] = []
        idle = 0
        for lens in sample_lengths(program, refused, telling):
            if idle >= enough:
                break
            try:
                with uncollected():
                    numbered = settled_for(lens)
                    settled = numbered.program
                    arrays, trees = without_tuples(settled)
                    known_as = numbered if trees is None else None
                    plans = list(self._plans(arrays, not is_optimal(program, lens), known_as))
                    settled.release()
            except MgxError:  # lengths that do not fit each other; whoever runs the program on such is told
                refused.append(lens)
                continue
            yield from plans
            found = known.union(*(plan.kernels() for plan in plans))
            idle = idle + 1 if len(found) == len(known) else 0
            known = found

    def _plans(self, program: Program, ranging: bool, numbered: Numbered | None = None) -> Iterator[Plan]:
        """Plans of all stages of a program whose inputs have lengths; ``ranging`` as in `Lowering`, ``numbered`` as of
        `compile_program`."""
        stages = split(program)
        if stages is None:
            optimized = _optimized(program, self._options, self._shared, numbered)
            later = partial(compile_program, options=self._options, enough=ENOUGH_LATER)
            plan, _ = lower_and_release(
                optimized, self._options, program, self._shared, spare=self._spare, ranging=ranging, later=later
            )
            release(optimized, plan)
            yield plan
            return
        yield from self._plans(stages.head, ranging)
        yield from self._sample_plans(stages.tail, ENOUGH_LATER)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        key = tuple(inputs[name].shape for name in self._names)
        with self._lock:
            found = self._specialized.get(key)
            if found is not None:
                self._specialized.move_to_end(key)
        if found is None:
            with uncollected():
                found = self._planned(key)
            with self._lock:
                self._keep(key, found)
        return found

    def _planned(self, key: tuple[tuple[int, ...], ...]) -> LoweredProgram:
        """A plan for these lengths of the dynamic inputs."""
        lens, settled = dict(zip(self._names, key)), self._settled
        numbered = settled(lens)
        program = numbered.program
        made = compile_program(
            program,
            self._options,
            None,
            self._shared,
            self._compiled_only,
            lambda: settled(lens).program,
            numbered=numbered,
        )
        if isinstance(made, CpuProgram):
            program.release()
        return made

    def _keep(self, key: tuple[tuple[int, ...], ...], made: LoweredProgram) -> None:
        """Keep the plan of some lengths, and let those go for which there is no room."""
        plans = self._specialized
        while len(plans) >= MOST_PLANS:
            plans.popitem(last=False)
        plans[key] = made
        sizes = [program.arena_bytes() for program in plans.values()]
        total = sum(sizes)
        for size in sizes[:-LAST]:
            if total <= MOST_BYTES:
                break
            plans.popitem(last=False)
            total -= size

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[Direct | None], None] | None = None
    ) -> Direct | None:
        """As `LoweredProgram.direct`, for lengths that have a plan. That of a plan which was taken twice in succession
        is preferred: its function looks at lengths itself, and sooner than the plan is found."""
        names, plans = self._names, self._specialized
        latest: tuple[tuple[int, ...], ...] | None = None
        preferred = False

        def for_lengths(inputs: Any) -> list[Any] | None:
            nonlocal latest, preferred
            try:
                if preferred and latest is not None and latest in plans:  # in use until now
                    plans.move_to_end(latest)
                key = tuple([inputs[name].shape for name in names])
                program = plans[key]
                plans.move_to_end(key)
            except (AttributeError, IndexError, KeyError, TypeError):  # invalid on the general path, too, or new
                return None
            entry = program._direct.get(result_type) or program.direct(result_type)
            if prefer is not None and preferred != (key == latest and entry is not None):
                preferred = not preferred
                prefer(entry if preferred else None)
            latest = key
            return None if entry is None else entry(inputs)

        return for_lengths

    def kernels(self) -> list[KernelSource]:
        """See `LoweredProgram.kernels`; those that lengths within the ranges may need, too."""
        return list({**self._compiled, **{kernel: kernel for kernel in super().kernels()}}.values())

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`: that of all sets of lengths so far."""
        log = RewriteLog()
        for program in list(self._specialized.values()):
            log.include(program.rewrite_log())
        return log

    def _parts(self) -> list[LoweredProgram]:
        return list(self._specialized.values())


def _optimizing(again: Callable[[], Program], options: TargetOptions) -> Callable[[], Program]:
    """What optimises a program once more."""
    return lambda: optimize(without_tuples(again())[0], options)


def _measure(tuning: Tuning, ask: Callable[[], object]) -> None:
    from ..tuning import tune  # late: a compilation that measures nothing needs none of it
    from .measuring import Bench

    tune(tuning, Bench, ask)
