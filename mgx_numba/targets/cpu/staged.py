"""A program in which lengths depend on data, as two programs: the second is made for what the first has found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import numpy as np

from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ..base import KeptPlan, Stage, Tree, grouped
from ..stages import ProgramStages
from .compiled import LoweredProgram

if TYPE_CHECKING:
    from ..base import Observer, ThreadSpan

__all__ = ["StagedProgram"]


class StagedProgram(LoweredProgram):
    """Runs the first stage, then the second on some of its results."""

    several_plans: ClassVar[str] = "lengths inside of it depend on the values of its inputs"

    def __init__(
        self,
        stages: ProgramStages,
        compile: Callable[[Program], LoweredProgram],
        trees: list[Tree] | None,
        whole: Program,
    ) -> None:
        """``compile`` makes the program of a stage; ``trees`` groups the results of ``whole``, which is shown."""
        super().__init__(None, trees, lambda: whole)
        self._head, self._tail = compile(stages.head), compile(stages.tail)
        self._seam = stages.seam

    def _in_stages(
        self, inputs: Mapping[str, np.ndarray], run: Callable[[LoweredProgram, Mapping[str, np.ndarray]], list[Any]]
    ) -> list[Any]:
        """Results of both stages, each run by ``run``, as those of the whole."""
        head, tail = partial(run, self._head), partial(run, self._tail)
        return grouped(self.trees, self._seam.run(inputs, head, tail))

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """See `LoweredProgram.run`."""
        return self._in_stages(inputs, lambda stage, given: stage.run(given))

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """See `LoweredProgram.observe`: the steps of both stages."""
        return self._in_stages(inputs, lambda stage, given: stage.observe(given, observer))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """See `LoweredProgram.stages`: those of both, the first of which is run for the second's lengths."""
        return self._seam.stages(inputs, self._head, self._tail)

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> list[ThreadSpan]:
        """See `LoweredProgram.timeline`: that of both stages."""
        spans: list[ThreadSpan] = []

        def timed(stage: LoweredProgram, given: Mapping[str, np.ndarray]) -> list[Any]:
            spans.extend(stage.timeline(given))
            return stage.run(given)

        self._in_stages(inputs, timed)
        return spans

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """See `LoweredProgram.trace`: the steps of both stages."""
        return self._in_stages(inputs, lambda stage, given: stage.trace(given, level, out))

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See `LoweredProgram.idle`; what the second stage takes is known only by running the first, so it is left
        out."""
        self._head.idle(inputs)

    def _parts(self) -> list[LoweredProgram]:
        return [self._head, self._tail]

    def host_reasons(self) -> dict[str, str]:
        """See `LoweredProgram.host_reasons`: those of the first stage; the second has a plan when it runs."""
        return self._head.host_reasons()

    def rewrite_log(self) -> RewriteLog:
        """See `LoweredProgram.rewrite_log`: that of both stages."""
        log = RewriteLog()
        for stage in (self._head, self._tail):
            log.include(stage.rewrite_log())
        return log

    def kept_plan(self) -> KeptPlan | None:
        """None: a plan of the second stage is made when it runs."""
        return None
