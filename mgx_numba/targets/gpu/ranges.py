"""What the plans of one program with dynamic inputs have in common: kernels that are made when it is compiled, passes
that are replayed, constants that are on the device once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial

from ...codegen.gpu.backend import BACKEND
from ...codegen.kernel import KernelSource
from ...errors import MgxError
from ...garbage import uncollected
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic
from ...runtime.plan import Plan
from .. import kernel_lists
from ..lowering.lowering import Lowering
from ..lowering.shared import Shared, release
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import BY_SIZE, SOURCE_PASSES
from ..samples import Lens, sample_lengths
from ..settled import settling
from ..tracing import is_watched
from .capabilities import pass_options
from .passes import PASSES
from .rules import RULES

__all__ = ["LengthRanges", "lowering", "optimized"]

Ready = Callable[[KernelSource], bool]

WORKERS = 1
"""Memory colouring has no shares to keep apart: all of a device works on one step at a time."""
ENOUGH = 14
"""Sets of lengths in succession that needed no kernel that others before them had not needed: no more are tried."""
ENOUGH_INSIDE = 2
"""The same for a body of a program with dynamic inputs, at each set of lengths of these."""
ROWS = tuple(near for power in range(1, 13) for near in ((1 << power) + 1, (1 << power) + 2, (1 << power) + 4))
"""Lengths of rows for each number of threads that a kernel of reductions has for one, and each width of its vectors: of
all of them the general kernels are made."""


class LengthRanges:
    """See the module. May be used from any thread.

    Attributes:
        source: the program, what does not depend on lengths being done.
        names: of its inputs, in the order of a set of lengths.
        kernels: that lengths within the ranges need, as far as it is known.
    """

    def __init__(
        self, program: Program, options: TargetOptions, ready: Ready | None = None, enough: int = ENOUGH
    ) -> None:
        """Find out what lengths within the ranges may need.

        Args:
            program: with dynamic inputs; it stays as it is.
            options: what was asked for.
            ready: tells which kernels there are, in the place of finding out.
            enough: sets of lengths in succession that need no kernel that is not known, after which no more are tried.
        """
        self._options = options
        self.source = program.clone()
        _run(self.source, options, SOURCE_PASSES)
        self.names = [name for name, shape in self.source.parameter_shapes().items() if shape.element is None]
        self.kernels: dict[KernelSource, None] = {}
        self._texts: set[str] = set()
        self._bodies: set[Hashable] = set()
        arrays, self.trees = without_tuples(self.source)
        self._copy = settling(arrays, options, pass_options(options))
        self._shared = Shared.of(self.source, partial(_rewrite, options), traced=True)
        if options.tuning is not None:
            options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
        self._ready = ready
        if ready is not None:
            return
        if enough < ENOUGH:
            self._sample(enough)
            return
        known = kernel_lists.find(self.source, options, BACKEND, WORKERS)
        if known is None:
            self._sample(enough)
            self._sample_rows()
            kernel_lists.keep(self.source, options, BACKEND, WORKERS, self.kernels)
        else:
            self._know(known)
            refused: list[Lens] = []
            for lens in sample_lengths(self.source, refused, telling=True):  # passes are traced in any case
                self._kernels(lens, refused)

    def planned(self, lens: Mapping[str, Sequence[int]]) -> tuple[Plan, RewriteLog]:
        """The plan for a set of lengths, and what passes and rules have said of it.

        The plan has kernels that others have, by whichever solvers; where some are wanted in the place of which the
        host would compute something, it has these.

        Raises:
            MgxError: the lengths do not fit the program.
        """
        program = self._optimized(lens)
        low = self._lowering(program)
        if self._texts or self._ready is not None:
            low.ready = self._is_known
        plan = low.run()
        if low.lacking:
            plan = self._lowering(program).run()
            self._know(plan.kernels())
        log = program.log
        release(program, plan)
        return plan, log

    def settled(self, lens: Mapping[str, Sequence[int]]) -> Program:
        """The program for a set of lengths before the passes, its results being arrays.

        Raises:
            MgxError: the lengths do not fit the program.
        """
        return self._copy(lens).program

    def _know(self, kernels: Iterable[KernelSource]) -> bool:
        """Let later plans have kernels; whether some are new."""
        new = [kernel for kernel in kernels if kernel.text not in self._texts]
        self.kernels.update(dict.fromkeys(new))
        self._texts.update(kernel.text for kernel in new)
        return bool(new)

    def _is_known(self, kernel: KernelSource) -> bool:
        return kernel.text in self._texts or (self._ready is not None and self._ready(kernel))

    def _optimized(self, lens: Mapping[str, Sequence[int]]) -> Program:
        """The program for a set of lengths after the passes, most of which are replayed."""
        copy = self._copy(lens)
        if is_watched():
            return optimized(copy.program, self._options)
        made = self._shared.passes.run(copy)
        _run(made, self._options, [name for name in PASSES if name in BY_SIZE])
        return made

    def _lowering(self, program: Program, general: bool = False) -> Lowering:
        low = lowering(program, self._options, partial(self._effort, general))
        low.shared, low.solutions = self._shared.weights, self._shared.solutions
        return low

    def _sample(self, enough: int) -> None:
        """Plan lengths that stand for the ranges, until ``enough`` in succession have no kernel that is not known."""
        refused: list[Lens] = []
        idle = 0
        for lens in sample_lengths(self.source, refused):
            if idle >= enough:
                break
            found = self._kernels(lens, refused)
            if found is not None:
                idle = 0 if self._know(found) else idle + 1

    def _sample_rows(self) -> None:
        """Plan lengths for general kernels alone."""
        for lens in sample_lengths(self.source, together=ROWS):
            self._know(self._kernels(lens, [], general=True) or ())

    def _effort(self, general: bool, body: Program) -> int:
        """Of how many sets of lengths in succession a body of this program shall have no kernel that is not known: its
        own do not often depend on the lengths around it."""
        kinds = tuple([(s.type, s.ndim) for s in body.parameter_shapes().values()])
        if kinds not in self._bodies:
            self._bodies.add(kinds)
            return ENOUGH
        return 0 if general else ENOUGH_INSIDE

    def _kernels(self, lens: Lens, refused: list[Lens], general: bool = False) -> list[KernelSource] | None:
        """The kernels of a plan and the ``general`` ones that could be in their place, or these alone; None of lengths
        that do not fit each other, which ``refused`` gets: whoever runs the program on such is told."""
        try:
            with uncollected():
                program = self._optimized(lens)
                low = self._lowering(program, general)
                low.spare = {}
                plan = low.run()
                release(program, plan)
        except MgxError:
            refused.append(lens)
            return None
        return [*(() if general else plan.kernels()), *low.spare]


def lowering(
    program: Program, options: TargetOptions, effort: Callable[[Program], int] = lambda body: ENOUGH
) -> Lowering:
    """What makes the plan of an optimised program; ``effort`` as `LengthRanges` takes ``enough`` for a body."""
    low = Lowering(program, options, RULES, BACKEND, WORKERS)
    low.later = partial(BodyPlans, low, effort)
    return low


class BodyPlans:
    """Plans of a body whose lengths are known when it runs; see `runtime.gpu.late`.

    Attributes:
        kernels: that it may need, as far as it is known.
    """

    def __init__(self, low: Lowering, effort: Callable[[Program], int], program: Program) -> None:
        """``low`` lowers what the body belongs to; its kernels are those of that, if no others may be used."""
        self._program, self._options = program, low.options
        self._names = list(program.parameter_shapes())
        self._ranges: LengthRanges | None = None
        self._plan: Plan | None = None
        if is_dynamic(program):
            self._ranges = LengthRanges(program, low.options, low.ready, effort(program))
            self.kernels = list(self._ranges.kernels)
        else:
            self._plan = low.lowered(optimized(program, low.options))
            self.kernels = self._plan.kernels()

    def planned(self, lens: Sequence[Sequence[int]]) -> Plan:
        """The plan for lengths of all inputs."""
        if self._ranges is None:
            assert self._plan is not None
            return self._plan
        given = dict(zip(self._names, lens, strict=True))
        return self._ranges.planned({name: given[name] for name in self._ranges.names})[0]


def optimized(program: Program, options: TargetOptions) -> Program:
    """A copy after the passes."""
    program = program.clone()
    _run(program, options, PASSES)
    program.remove_unused_modules()
    return program


def _rewrite(options: TargetOptions, program: Program) -> None:
    """What is the same for most sets of lengths."""
    _run(program, options, [name for name in PASSES if name not in BY_SIZE])
    program.remove_unused_modules()


def _run(program: Program, options: TargetOptions, passes: Sequence[str]) -> None:
    run_passes(program, passes, pass_options(options), disabled=options.disabled_passes)
