"""Programs with dynamic inputs, compiled for the CPU: one plan whose numbers follow from the lengths of a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...core.dim import Dim, Scope
from ...errors import ShapeError
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.symbolic import symbolic_program
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

logger = logging.getLogger(__name__)


class SymbolicProgram(LoweredProgram):
    """A program with dynamic inputs. It has a plan for all lengths, and others for lengths that the first does not serve.

    Which lengths these are the plans' conditions say; a plan that is missing is made in the run that needs it.
    """

    def __init__(
        self, source: Program, options: TargetOptions, progress: Callable[[int, int, str], None] | None
    ) -> None:
        """Compile a program for all lengths within the ranges of its inputs.

        Args:
            source: it stays as it is; what does not depend on lengths has been simplified.
            options: what was asked for.
            progress: told of the kernels that are compiled.

        Raises:
            SymbolicLengthError: something in it is not expressed over symbols.
        """
        super().__init__(None, None, lambda: source, options.store)
        self._source = source
        self._compile_options = options
        self._weights = SharedWeights(source)
        self._names = [name for name, shape in source.parameter_shapes().items() if shape.is_dynamic]
        self._lock = threading.RLock()
        self._variants: list[LoweredProgram] = [self._variant(None, progress)]

    def _variant(
        self, lens: Mapping[str, tuple[int, ...]] | None, progress: Callable[[int, int, str], None] | None = None
    ) -> LoweredProgram:
        """Compile the program for the lengths that have what these have in common with all that its code asks."""
        options = self._compile_options
        scope = Scope()
        made, trees = without_tuples(symbolic_program(self._source, scope, lens))
        if split(made) is not None:
            raise SymbolicLengthError("lengths inside of the program depend on data")
        run_passes(made, PASSES, pass_options(options), disabled=options.disabled_passes)
        made.remove_unused_modules()
        plan = lower_symbolic(made, options, self._weights, scope)
        scope.close()
        executable = Executable(plan, options.num_threads or None, progress, options.store)
        return LoweredProgram(executable, trees, lambda: made, options.store)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        found = self._serving(inputs)
        if found is not None:
            return found
        with self._lock:
            found = self._serving(inputs)
            if found is None:
                lens = {name: inputs[name].shape for name in self._names}
                logger.info("planning %s: no plan serves these lengths", lens)
                found = self._variant(lens)
                self._variants = [found, *self._variants]
        return found

    def _serving(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram | None:
        for variant in self._variants:
            executable = variant.executable
            if executable is not None and executable.serves(variant.arrays(inputs)):
                return variant
        return None
