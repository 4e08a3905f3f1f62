"""A program compiled for the ``gpu`` target: its passes run, lowered to a plan, its kernels loaded."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...codegen.gpu.backend import BACKEND
from ...codegen.gpu.libraries.calls import described
from ...codegen.kernel import KernelSource
from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...garbage import uncollected
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic
from ...runtime.gpu.choice import engine
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.executor import DeviceExecutable
from ...runtime.gpu.transfers import to_device, to_host
from ...runtime.plan import HostStep, Plan, PlannedStep, Step, TensorView
from ..base import KeptPlan, Observation, Observer, Stage, Tree, grouped
from ..lowering.lowering import Lowering
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from .ranges import WORKERS, LengthRanges, optimized
from .rules import RULES

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["GpuProgram"]

MOST_PLANS = 32
"""Plans that a program with dynamic inputs keeps; the least recently used goes when another set of lengths comes."""

Progress = Callable[[int, int, str], None]


class GpuProgram:
    """See `Compiled`; a program with dynamic inputs gets a plan for each set of lengths it meets."""

    _ranges: LengthRanges | None
    _trees: list[Tree] | None
    _plan: Plan | None
    _log: RewriteLog | None

    def __init__(
        self, program: Program, options: TargetOptions, progress: Progress | None = None, on: Engine | None = None
    ) -> None:
        """``on`` is what it runs on, by default the device of the options.

        Raises:
            DeviceError: there is none.
        """
        self._begin(options, on or engine(options.device_id))
        if is_dynamic(program):
            self._ranges = LengthRanges(program, options, self._engine, progress)
            self.program = self._ranges.source
            return
        program, self._trees = without_tuples(program)
        self.program = optimized(program, options)
        if options.tuning is not None and options.tuning.exhaustive:
            self._measure(options.tuning)
        self._plan = Lowering(self.program, options, RULES, BACKEND, WORKERS).run()
        if options.tuning is not None:
            options.tuning.tell()
        self.executable = DeviceExecutable(self._plan, self._engine, progress, options.store)

    @classmethod
    def _of_ranges(
        cls, ranges: LengthRanges, key: Sequence[tuple[int, ...]], options: TargetOptions, on: Engine
    ) -> GpuProgram:
        """The program for a set of lengths of its inputs."""
        lens = dict(zip(ranges.names, key))
        made = cls.__new__(cls)
        made._begin(options, on, functools.partial(ranges.settled, lens))
        made._plan, made._log = ranges.planned(lens)
        made._trees = ranges.trees
        made.executable = DeviceExecutable(made._plan, on, None, options.store, ranges.constants)
        return made

    @classmethod
    def restored(cls, kept: KeptPlan, options: TargetOptions, portable: Callable[[], Program]) -> GpuProgram:
        """The program of a plan that `kept_plan` gave; arguments as of `Target.restore`."""
        made = cls.__new__(cls)
        made._begin(options, engine(options.device_id), portable)
        made._plan, made._trees = kept.plan, kept.trees
        return made

    def _begin(self, options: TargetOptions, on: Engine, portable: Callable[[], Program] | None = None) -> None:
        self._options = options
        self._portable = portable
        self._engine = on
        self._specialized: OrderedDict[tuple[tuple[int, ...], ...], GpuProgram] = OrderedDict()
        self._lock = threading.Lock()
        self._ranges = None
        self._trees = None
        self._plan = None
        self._log = None

    def _measure(self, tuning: Tuning) -> None:
        """Have the contractions measured that the program needs and there is no record of."""
        if not self._engine.name:
            tuning.decline("times of the interpreter say nothing of a device")
            return
        from ..tuning import tune  # late: a compilation that measures nothing needs none of it
        from .measuring import DeviceBench, compile_candidates

        Lowering(self.program, self._options, RULES, BACKEND, WORKERS).run()  # asks the tuning all its questions
        compile_candidates(self._engine, tuning)
        tune(tuning, functools.partial(DeviceBench, self._engine))

    @functools.cached_property
    def program(self) -> Program:
        """See `Compiled.program`; of a plan from a file, or for lengths, it is made when somebody asks."""
        assert self._portable is not None
        return optimized(without_tuples(self._portable())[0], self._options)

    @functools.cached_property
    def executable(self) -> DeviceExecutable | None:
        """What runs; None of dynamic inputs. Of a plan from a file it is made when somebody asks: by then the
        constants are read."""
        with self._lock:
            known = self.__dict__.get("executable")
            if known is not None or self._plan is None:
                return known
            made = DeviceExecutable(self._plan, self._engine, None, self._options.store)
            self.__dict__["executable"] = made
            return made

    @property
    def device(self) -> int:
        """See `OnDevice.device`."""
        return self._engine.number

    @property
    def offload_copy(self) -> bool:
        """See `OnDevice.offload_copy`."""
        return self._options.offload_copy

    def output_parameters(self) -> dict[str, Shape]:
        """See `OnDevice.output_parameters`; with dynamic inputs, or of tuples, there are none."""
        if self.offload_copy or self.executable is None or self._trees is not None:
            return {}
        return {_output(k): s for k, s in enumerate(self.executable.result_shapes) if s is not None}

    def entry(self) -> Callable[[Sequence[Any], Sequence[Any], int | None], list[Any]] | None:
        """See `OnDevice.entry`."""
        if self.executable is None or self._trees is not None or None in self.executable.result_shapes:
            return None
        return self.executable.run

    def _for(self, inputs: Mapping[str, Any]) -> GpuProgram:
        """The program for these inputs' lengths."""
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
            found = GpuProgram._of_ranges(ranges, key, self._options, self._engine)
        with self._lock:
            while len(self._specialized) >= MOST_PLANS:
                self._specialized.popitem(last=False)
            self._specialized[key] = found
        return found

    def _arrays(self, inputs: Mapping[str, Any]) -> list[Any]:
        assert self.executable is not None
        given = (inputs[p.name] for p in self.executable.plan.parameters)
        return [v if isinstance(v, DeviceArray) else np.ascontiguousarray(v) for v in given]

    def run(self, inputs: Mapping[str, Any], stream: int | None = None) -> list[Any]:
        """See `Compiled.run`; inputs may lie on the device, and results stay there if they are not offloaded."""
        return self.run_staying(inputs, stream, not self.offload_copy)

    def run_there(self, inputs: Mapping[str, Any]) -> list[Any]:
        """See `OnDevice.run_there`."""
        return self.run_staying(inputs, None, True)

    def run_staying(self, inputs: Mapping[str, Any], stream: int | None, stays: bool) -> list[Any]:
        """As ``run``, but for whether results stay on the device."""
        target = self._for(inputs)
        executable = target.executable
        assert executable is not None
        outputs = None
        if stays:
            outputs = [inputs.get(_output(k)) for k in range(len(executable.result_shapes))]
        return grouped(target._trees, executable.run(target._arrays(inputs), outputs, stream))

    def run_in(self, inputs: Mapping[str, Any], stream: int) -> list[Any]:
        """See `OnDevice.run_in`."""
        return self.run(inputs, stream)

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        """None: arrays of the host are copied, beside which nothing else counts; `entry` is for those of the device."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """See `Compiled.resolve`."""
        return self._for(inputs).program

    def observe(self, inputs: Mapping[str, Any], observer: Observer) -> list[Any]:
        """See `Compiled.observe`; seconds are the device's. Data comes from the host, and results go there."""
        inputs = {name: self._on_host(value) for name, value in inputs.items()}
        target = self._for(inputs)
        assert target.executable is not None

        def note(index: int, step: PlannedStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
            flops, moved, reason = (step.flops, step.bytes, "") if isinstance(step, Step) else (0, 0, step.reason)

            def outputs() -> list[np.ndarray]:
                return [view(v) for v in step.outputs]

            observer(Observation(step.instruction, step.label, seconds, outputs, flops, moved, reason))

        return grouped(target._trees, target.executable.run_traced(target._arrays(inputs), note))

    def step_seconds(self, inputs: Mapping[str, Any]) -> list[float]:
        """See `Repeatable.step_seconds`."""
        inputs = {name: self._on_host(value) for name, value in inputs.items()}
        target = self._for(inputs)
        assert target.executable is not None
        return target.executable.time_steps(target._arrays(inputs))

    def _on_device(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._on_device(v) for v in value]
        return value if value.dtype.hasobject else to_device(self._engine, value, "a result")

    def _on_host(self, value: Any) -> np.ndarray:
        if not isinstance(value, DeviceArray):
            return value
        return to_host(self._engine, value).reshape(value.shape.array_lens)

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
            reason = f" (on the host: {seen.reason})" if seen.reason else ""
            write_trace(out, f"{seen.instruction} [{seen.label}]{reason}", seen.seconds, total, seen.outputs(), level)

        results = self.observe(inputs, show)
        return results if self.offload_copy else [self._on_device(r) for r in results]

    def kernels(self) -> list[KernelSource]:
        """The distinct kernels, in order of first use."""
        if self._ranges is not None:
            return list(self._ranges.kernels)
        return list(dict.fromkeys(self._plan.kernels() if self._plan is not None else ()))

    def host_reasons(self) -> dict[str, str]:
        """See `Compiled.host_reasons`; with dynamic inputs a plan belongs to a set of lengths, and none is here."""
        steps = self._plan.steps if self._plan is not None else []
        return {step.instruction: step.reason for step in steps if isinstance(step, HostStep)}

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`: that of all sets of lengths so far."""
        log = RewriteLog()
        log.include(self._log or self.program.log)
        for program in list(self._specialized.values()):
            log.include(program.rewrite_log())
        return log

    def kept_plan(self) -> KeptPlan | None:
        """See `Compiled.kept_plan`: a program with dynamic inputs has a plan for each set of lengths, and one that
        calls libraries is planned anew, since these may be others by then."""
        if self._plan is None or any(described(kernel) is not None for kernel in self._plan.kernels()):
            return None
        return KeptPlan(self._plan, self._trees)

    def machine_code(self) -> dict[str, Any]:
        """See `Compiled.machine_code`: of all kernels that the program has by now."""
        from ...codegen.embedding import embed  # late: few programs are saved with their code

        return embed(self.kernels(), self._options.store)


def _output(number: int) -> str:
    """What MIGraphX calls the parameter that is memory for a result."""
    return f"main:#output_{number}"


def _lens(value: Any) -> tuple[int, ...]:
    return value.shape.array_lens if isinstance(value, DeviceArray) else value.shape
