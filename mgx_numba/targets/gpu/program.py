"""A program compiled for the ``gpu`` target: its passes run, lowered to a plan, its kernels loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import numpy as np

from ...codegen.gpu.backend import BACKEND
from ...codegen.kernel import KernelSource
from ...errors import OptionError
from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic, specialize
from ...runtime.gpu.choice import engine
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.executor import DeviceExecutable
from ...runtime.plan import HostStep, Step, TensorView
from ..base import Observation, Observer, Stage, Tree
from ..lowering.lowering import Lowering
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from .capabilities import pass_options
from .passes import PASSES
from .rules import RULES

__all__ = ["GpuProgram"]

MOST_PLANS = 32
"""Plans that a program with dynamic inputs keeps; the least recently used goes when another set of lengths comes."""
_WORKERS = 1
"""Memory colouring has no shares to keep apart: all of a device works on one step at a time."""

Progress = Callable[[int, int, str], None]


class GpuProgram:
    """See `Compiled`; a program with dynamic inputs gets a plan for each set of lengths it meets."""

    def __init__(
        self, program: Program, options: TargetOptions, progress: Progress | None = None, on: Engine | None = None
    ) -> None:
        """``on`` is what it runs on, by default the first device.

        Raises:
            DeviceError: there is none.
        """
        self._options = options
        self._engine = on or engine()
        self._specialized: OrderedDict[tuple[tuple[int, ...], ...], GpuProgram] = OrderedDict()
        self._lock = threading.Lock()
        self._source: Program | None = None
        self._trees: list[Tree] | None = None
        self.executable: DeviceExecutable | None = None
        if is_dynamic(program):
            self._source = self.program = program.clone()
            return
        program, self._trees = without_tuples(program)
        self.program = program.clone()
        run_passes(self.program, PASSES, pass_options(options), disabled=options.disabled_passes)
        self.program.remove_unused_modules()
        plan = Lowering(self.program, options, RULES, BACKEND, _WORKERS).run()
        self.executable = DeviceExecutable(plan, self._engine, progress, options.store)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> GpuProgram:
        """The program for these inputs' lengths."""
        if self._source is None:
            return self
        names = [name for name, shape in self._source.parameter_shapes().items() if shape.element is None]
        key = tuple(inputs[name].shape for name in names)
        with self._lock:
            found = self._specialized.get(key)
            if found is not None:
                self._specialized.move_to_end(key)
                return found
        lens = {name: array.shape for name, array in inputs.items()}
        found = GpuProgram(specialize(self._source, lens), self._options, None, self._engine)
        with self._lock:
            while len(self._specialized) >= MOST_PLANS:
                self._specialized.popitem(last=False)
            self._specialized[key] = found
        return found

    def _arrays(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        assert self.executable is not None
        return [np.ascontiguousarray(inputs[p.name]) for p in self.executable.plan.parameters]

    def _grouped(self, results: list[np.ndarray]) -> list[Any]:
        return results if self._trees is None else [_group(tree, results) for tree in self._trees]

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """See `Compiled.run`."""
        target = self._for(inputs)
        assert target.executable is not None
        return target._grouped(target.executable.run(target._arrays(inputs)))

    def direct(self, result_type: type[np.ndarray]) -> None:
        """There is no quicker form yet."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """See `Compiled.resolve`."""
        return self._for(inputs).program

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """See `Compiled.observe`; seconds are the device's."""
        target = self._for(inputs)
        assert target.executable is not None

        def note(index: int, step: Step | HostStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
            flops, moved = (step.flops, step.bytes) if isinstance(step, Step) else (0, 0)
            outputs = step.outputs
            observer(
                Observation(step.instruction, step.label, seconds, lambda: [view(v) for v in outputs], flops, moved)
            )

        return target._grouped(target.executable.run_traced(target._arrays(inputs), note))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """See `Planned.stages`."""
        target = self._for(inputs)
        assert target.executable is not None
        return [Stage(target.program, target.executable.plan)]

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Nothing: what a call costs besides its steps is not measured yet."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """See `Compiled.trace`."""
        from ..tracing import write_trace

        total = 0.0

        def show(seen: Observation) -> None:
            nonlocal total
            total += seen.seconds
            write_trace(out, f"{seen.instruction} [{seen.label}]", seen.seconds, total, seen.outputs(), level)

        return self.observe(inputs, show)

    def kernels(self) -> list[KernelSource]:
        """The distinct kernels, in order of first use."""
        found: dict[KernelSource, None] = {}
        for program in (self, *self._specialized.values()):
            if program.executable is not None:
                found.update(dict.fromkeys(program.executable.plan.kernels()))
        return list(found)

    def host_reasons(self) -> dict[str, str]:
        """See `Compiled.host_reasons`; with dynamic inputs a plan belongs to a set of lengths, and none is here."""
        steps = self.executable.plan.steps if self.executable is not None else []
        return {step.instruction: step.reason for step in steps if isinstance(step, HostStep)}

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`: that of all sets of lengths so far."""
        log = RewriteLog()
        log.include(self.program.log)
        for program in list(self._specialized.values()):
            log.include(program.rewrite_log())
        return log

    def kept_plan(self) -> None:
        """None: plans of this target are made again."""

    def machine_code(self) -> dict[str, Any]:
        """See `Compiled.machine_code`.

        Raises:
            OptionError: always: objects of this target stay in the object store.
        """
        raise OptionError("the target gpu keeps no machine code in files yet")


def _group(tree: Tree, arrays: list[np.ndarray]) -> Any:
    return arrays[tree] if isinstance(tree, int) else [_group(t, arrays) for t in tree]
