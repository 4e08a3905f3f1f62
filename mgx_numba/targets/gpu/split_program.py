"""Run a program in two stages where lengths depend on data; the second stage is compiled for the lengths that the first
found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...codegen.kernel import KernelSource
from ...core.shape import Shape
from ...graph.program import Program
from ...runtime.gpu.engine import Engine, Queue
from ..base import Inputs, Results, Tree, grouped
from ..options import TargetOptions
from ..split_point import SplitCompiled, SplitPoint
from ..symbolic_split import SymbolicSplit
from .compiled import DeviceCalls, on_host


class SplitGpuProgram(DeviceCalls, SplitCompiled):
    """A program of two stages; see `Compiled`, `OnDevice` and `Planned`. Values passed between the stages stay on the
    device."""

    def __init__(
        self,
        head: Any,
        tail: Any,
        split_point: SplitPoint,
        trees: list[Tree] | None,
        whole: Callable[[], Program],
        on: Engine,
        options: TargetOptions,
    ) -> None:
        """Connect the compiled stages ``head`` and ``tail``; ``trees`` groups the results of the program that ``whole``
        returns, which is shown to users."""
        SplitCompiled.__init__(self, head, tail, split_point, trees)
        self._engine, self._options = on, options
        self._whole = whole

    @functools.cached_property
    def program(self) -> Program:
        """See `Compiled.program`."""
        return self._whole()

    def output_parameters(self) -> dict[str, Shape]:
        """Return an empty dictionary: lengths of results may depend on data. See `OnDevice.output_parameters`."""
        return {}

    def entry(self) -> None:
        """Return None: the second stage needs lengths from the first. See `OnDevice.entry`."""

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        """Return None, as `DeviceProgram.direct` does."""

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[object]:
        def run(stage: Any, given: Inputs) -> Results:
            return stage.run_staying(given, stream, stays or stage is self._head)  # type: ignore[no-any-return]

        results = self._in_stages(inputs, run)
        return grouped(self._trees, results if stays else [on_host(self._engine, r) for r in results])

    def run_on(self, queue: Queue, inputs: Inputs) -> Results:
        return grouped(self._trees, self._in_stages(inputs, lambda stage, given: stage.run_on(queue, given)))

    def resolve(self, inputs: Inputs) -> Program:
        """Return the whole program, although each stage runs another program; see `Compiled.resolve`."""
        return self.program

    def step_seconds(self, inputs: Inputs) -> list[float]:
        """Return the seconds of both stages' steps; see `Repeatable.step_seconds`."""
        seconds: list[float] = []

        def timed(stage: Any, given: Inputs) -> list[object]:
            seconds.extend(stage.step_seconds(given))
            return stage.run_staying(given, None, True)  # type: ignore[no-any-return]

        self._in_stages(inputs, timed)
        return seconds

    def idle(self, inputs: Inputs) -> None:
        """Do nothing, as `DeviceProgram.idle` does."""

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels of both stages."""
        return list(dict.fromkeys([*self._head.kernels(), *self._tail.kernels()]))

    def machine_code(self) -> dict[str, object]:
        """See `Compiled.machine_code`; covers all kernels that both stages have so far."""
        from ...codegen.embedding import embed  # late: few programs are saved with machine code

        return embed(self.kernels(), self._options.store)


class DeviceSymbolicSplit(SymbolicSplit, SplitGpuProgram):
    """See `SymbolicSplit`."""
