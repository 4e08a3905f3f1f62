"""What the plans of one program with dynamic inputs have in common: kernels that are made when it is compiled, passes
that are replayed, constants that are on the device once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...codegen.gpu.backend import BACKEND
from ...codegen.kernel import KernelSource
from ...errors import MgxError
from ...garbage import uncollected
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine
from ...runtime.plan import Plan
from .. import kernel_lists
from ..base import Progress
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

__all__ = ["WORKERS", "LengthRanges", "optimized"]

WORKERS = 1
"""Memory colouring has no shares to keep apart: all of a device works on one step at a time."""
ENOUGH = 14
"""Sets of lengths in succession that needed no kernel that others before them had not needed: no more are tried."""
ROWS = tuple(near for power in range(1, 13) for near in ((1 << power) + 1, (1 << power) + 2, (1 << power) + 4))
"""Lengths of rows for each number of threads that a kernel of reductions has for one, and each width of its vectors: of
all of them the general kernels are made."""


class LengthRanges:
    """See the module. May be used from any thread.

    Attributes:
        source: the program, what does not depend on lengths being done.
        names: of its inputs, in the order of a set of lengths.
        constants: of its plans, on the device.
        kernels: that lengths within the ranges need, as far as it is known.
    """

    def __init__(self, program: Program, options: TargetOptions, engine: Engine, progress: Progress | None) -> None:
        """Compile what lengths within the ranges may need.

        Raises:
            CompileError: a kernel cannot be compiled.
        """
        self._options = options
        self.source = program.clone()
        _run(self.source, options, SOURCE_PASSES)
        self.names = [name for name, shape in self.source.parameter_shapes().items() if shape.element is None]
        self.constants = DeviceConstants(engine)
        self.kernels: dict[KernelSource, None] = {}
        self._texts: set[str] = set()
        arrays, self.trees = without_tuples(self.source)
        self._copy = settling(arrays, options, pass_options(options))
        self._shared = Shared.of(self.source, partial(_rewrite, options), traced=True)
        if options.tuning is not None:
            options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
        known = kernel_lists.find(self.source, options, BACKEND, WORKERS)
        if known is None:
            self._sample()
            kernel_lists.keep(self.source, options, BACKEND, WORKERS, self.kernels)
        else:
            self._know(known)
            refused: list[Lens] = []
            for lens in sample_lengths(self.source, refused, telling=True):  # passes are traced in any case
                self._kernels(lens, refused)
        engine.load(list(self.kernels), progress, options.store)

    def planned(self, lens: Mapping[str, Sequence[int]]) -> tuple[Plan, RewriteLog]:
        """The plan for a set of lengths, and what passes and rules have said of it.

        The plan has kernels that others have, by whichever solvers; where some are wanted in the place of which the
        host would compute something, it has these.

        Raises:
            MgxError: the lengths do not fit the program.
        """
        program = self._optimized(lens)
        low = self._lowering(program)
        if self._texts:
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
        return kernel.text in self._texts

    def _optimized(self, lens: Mapping[str, Sequence[int]]) -> Program:
        """The program for a set of lengths after the passes, most of which are replayed."""
        copy = self._copy(lens)
        if is_watched():
            return optimized(copy.program, self._options)
        made = self._shared.passes.run(copy)
        _run(made, self._options, [name for name in PASSES if name in BY_SIZE])
        return made

    def _lowering(self, program: Program) -> Lowering:
        low = Lowering(program, self._options, RULES, BACKEND, WORKERS)
        low.shared, low.solutions = self._shared.weights, self._shared.solutions
        return low

    def _sample(self) -> None:
        """Plan lengths that stand for the ranges, until `ENOUGH` in succession have no kernel that is not known, and
        others for general kernels alone."""
        refused: list[Lens] = []
        idle = 0
        for lens in sample_lengths(self.source, refused):
            if idle >= ENOUGH:
                break
            found = self._kernels(lens, refused)
            if found is not None:
                idle = 0 if self._know(found) else idle + 1
        for lens in sample_lengths(self.source, together=ROWS):
            self._know(self._kernels(lens, refused, general=True) or ())

    def _kernels(self, lens: Lens, refused: list[Lens], general: bool = False) -> list[KernelSource] | None:
        """The kernels of a plan and the ``general`` ones that could be in their place, or these alone; None of lengths
        that do not fit each other, which ``refused`` gets: whoever runs the program on such is told."""
        try:
            with uncollected():
                program = self._optimized(lens)
                low = self._lowering(program)
                low.spare = {}
                plan = low.run()
                release(program, plan)
        except MgxError:
            refused.append(lens)
            return None
        return [*(() if general else plan.kernels()), *low.spare]


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
