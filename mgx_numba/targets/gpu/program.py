"""A program compiled for the ``gpu`` target: its passes run, lowered to a plan, its kernels loaded."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...codegen.kernel import KernelSource
from ...core.device_array import DeviceArray
from ...garbage import uncollected
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic
from ...runtime.gpu.choice import engine
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.executor import DeviceExecutable
from ..base import Progress
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from .compiled import DeviceProgram
from .ranges import LengthRanges, lowering, optimized

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["GpuProgram"]

MOST_PLANS = 32
"""Plans that a program with dynamic inputs keeps; the least recently used goes when another set of lengths comes."""

_Key = tuple[tuple[int, ...], ...]


class GpuProgram(DeviceProgram):
    """See `Compiled`; a program with dynamic inputs gets a plan for each set of lengths it meets."""

    _ranges: LengthRanges | None = None

    def __init__(
        self, program: Program, options: TargetOptions, progress: Progress | None = None, on: Engine | None = None
    ) -> None:
        """``on`` is what it runs on, by default the device of the options.

        Raises:
            DeviceError: there is none.
        """
        on = on or engine(options.device_id)
        self._specialized: OrderedDict[_Key, DeviceProgram] = OrderedDict()
        if is_dynamic(program):
            self._ranges = ranges = LengthRanges(program, options)
            on.load(list(ranges.kernels), progress, options.store)
            self._constants = DeviceConstants(on)
            super().__init__(on, options, None, None, lambda: ranges.source)
            return
        arrays, trees = without_tuples(program)
        made = optimized(arrays, options)
        super().__init__(on, options, None, trees, lambda: made)
        if options.tuning is not None and options.tuning.exhaustive:
            self._measure(options.tuning)
        self._plan = lowering(made, options).run()
        if options.tuning is not None:
            options.tuning.tell()
        self.executable = DeviceExecutable(self._plan, on, progress, options.store)

    def _measure(self, tuning: Tuning) -> None:
        """Have the contractions measured that the program needs and there is no record of."""
        if not self._engine.name:
            tuning.decline("times of the interpreter say nothing of a device")
            return
        from ..tuning import tune  # late: a compilation that measures nothing needs none of it
        from .measuring import DeviceBench, compile_candidates

        lowering(self.program, self._options).run()  # asks the tuning all its questions
        compile_candidates(self._engine, tuning)
        tune(tuning, functools.partial(DeviceBench, self._engine))

    def _for(self, inputs: Mapping[str, Any]) -> DeviceProgram:
        ranges = self._ranges
        if ranges is None:
            return self
        key = tuple([_lens(inputs[name]) for name in ranges.names])
        with self._lock:
            found = self._specialized.get(key)
            if found is not None:
                self._specialized.move_to_end(key)
                return found
        with uncollected():
            found = self._of_lengths(ranges, key)
        with self._lock:
            while len(self._specialized) >= MOST_PLANS:
                self._specialized.popitem(last=False)
            self._specialized[key] = found
        return found

    def _of_lengths(self, ranges: LengthRanges, key: _Key) -> DeviceProgram:
        """The program for a set of lengths of its inputs."""
        options, lens = self._options, dict(zip(ranges.names, key))
        plan, log = ranges.planned(lens)

        def shown() -> Program:
            return optimized(without_tuples(ranges.settled(lens))[0], options)

        made = DeviceProgram(self._engine, options, plan, ranges.trees, shown, log)
        made.executable = DeviceExecutable(plan, self._engine, None, options.store, self._constants)
        return made

    def kernels(self) -> list[KernelSource]:
        """See `DeviceProgram.kernels`."""
        return super().kernels() if self._ranges is None else list(self._ranges.kernels)

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`: that of all sets of lengths so far."""
        log = super().rewrite_log()
        for program in list(self._specialized.values()):
            log.include(program.rewrite_log())
        return log


def _lens(value: Any) -> tuple[int, ...]:
    return value.shape.array_lens if isinstance(value, DeviceArray) else value.shape
