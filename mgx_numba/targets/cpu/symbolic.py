"""Programs with dynamic inputs, compiled for the CPU: one plan whose numbers follow from the lengths of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.dim import Guard, Scope, SymbolicLengthError, evaluate
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.symbolic import symbolic_program
from ...messages import INFO, shortened, tell
from ...runtime.cpu.executor import Executable
from ..base import Direct
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..passes import PASSES
from ..stages import split
from .capabilities import pass_options
from .compiled import LoweredProgram
from .lower import lower_symbolic

__all__ = ["SymbolicProgram"]

MOST_VARIANTS = 8
"""Plans of one program. More mean that some code asks a question whose answer changes from length to length."""


class SymbolicProgram(LoweredProgram):
    """A program with dynamic inputs, compiled for the CPU.

    One plan serves all lengths that give the guards of its compilation the answers that the example lengths gave. For
    others another plan is made, in the first run that meets such lengths.
    """

    def __init__(
        self,
        source: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        otherwise: Callable[[], LoweredProgram],
    ) -> None:
        """Compile a program for all lengths within the ranges of its inputs.

        Args:
            source: the program; it stays as it is.
            options: what was asked for.
            progress: told of the kernels that are compiled.
            otherwise: gives what runs lengths for which there is no plan when there are `MOST_VARIANTS`.

        Raises:
            SymbolicLengthError: something in the program cannot be expressed over symbols.
        """
        super().__init__(None, None, lambda: source, options.store)
        self._source = source
        self._options = options
        self._otherwise = otherwise
        self._other: LoweredProgram | None = None
        self._weights = SharedWeights(source)
        self._lock = threading.RLock()
        self._guards: dict[LoweredProgram, list[Guard]] = {}
        self._variants: list[LoweredProgram] = [self._variant(None, progress)]

    def _variant(
        self,
        lens: Mapping[str, Sequence[int]] | None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> LoweredProgram:
        """Return the program with a plan for lengths in general, or for lengths that are like some."""
        options = self._options
        scope = Scope()
        program, trees = without_tuples(symbolic_program(self._source, scope, lens))
        if split(program) is not None:
            raise SymbolicLengthError("lengths inside of the program depend on the values of its inputs")
        run_passes(program, PASSES, pass_options(options), disabled=options.disabled_passes)
        program.remove_unused_modules()
        plan = lower_symbolic(program, options, self._weights, scope)
        scope.close()
        executable = Executable(plan, options.num_threads or None, progress, options.store)
        made = LoweredProgram(executable, trees, lambda: program, options.store)
        self._guards[made] = list(scope.guards.values())
        return made

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        found = self._serving(inputs)
        if found is None:
            with self._lock:
                found = self._serving(inputs) or self._another(inputs)
        return found

    def _serving(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram | None:
        for number, variant in enumerate(self._variants):
            assert variant.executable is not None
            if variant.executable.serves(variant.arrays(inputs)):
                if number:
                    self._variants = [variant, *(other for other in self._variants if other is not variant)]
                return variant
        return None

    def _another(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        """Make a plan for lengths that no plan serves."""
        if len(self._variants) < MOST_VARIANTS:
            lens = {name: inputs[name].shape for name, s in self._source.parameter_shapes().items() if s.is_dynamic}
            tell(
                "symbolic", INFO, "a plan is made for lengths %s, which no plan serves: %s", lens, self._refused(inputs)
            )
            try:
                made = self._variant(lens)
            except SymbolicLengthError:
                made = None
            if made is not None and made.executable is not None and made.executable.serves(made.arrays(inputs)):
                self._variants = [made, *self._variants]
                return made
        if self._other is None:
            self._other = self._otherwise()
        return self._other._for(inputs)

    def _refused(self, inputs: Mapping[str, np.ndarray]) -> str:
        """Return the questions that these lengths answer otherwise than those of the last plan, and who asked them."""
        last = self._variants[0]
        assert last.executable is not None
        values = last.executable.values(last.arrays(inputs))
        if values is None:
            return "lengths that are equal in the plan differ"
        guards = self._guards[last]
        return "; ".join(
            f"{g.condition} ({g.place})" for g in guards if bool(evaluate(g.condition, values)) != g.answer
        )

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[Direct | None], None] | None = None
    ) -> Direct | None:
        """As `LoweredProgram.direct`: the plans' own functions in turn, each of which looks whether it serves."""
        preferred: Direct | None = None

        def for_lengths(inputs: Any) -> list[Any] | None:
            nonlocal preferred
            for number, variant in enumerate(self._variants):
                entry = variant.direct(result_type)
                found = None if entry is None else entry(inputs)
                if found is None:
                    continue
                if number:
                    self._variants = [variant, *(other for other in self._variants if other is not variant)]
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

    def _parts(self) -> list[LoweredProgram]:
        return [*self._variants, *([] if self._other is None else [self._other])]
