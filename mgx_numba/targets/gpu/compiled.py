"""A program's plan on a device: run, observe and show it; in two stages where lengths depend on data. Loading such a
program imports no pass and no operator."""

from __future__ import annotations

import dataclasses
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...codegen.gpu.libraries.calls import described
from ...codegen.gpu.transfer import transfer_kernel
from ...codegen.kernel import KernelSource
from ...core.copying import row_major
from ...core.device_array import DeviceArray, lens_of
from ...core.dim import Dim
from ...core.output_buffers import output_buffer
from ...core.shape import Shape
from ...core.types import Type
from ...runtime.explicit_lengths import is_explicit
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine, Queue
from ...runtime.gpu.executor import DeviceExecutable
from ...runtime.gpu.held_call import HeldCall, holds
from ...runtime.gpu.open_plan import OpenLengths, Shapes
from ...runtime.gpu.transfers import to_device, to_host
from ...runtime.host.plan_numbers import runs
from ...runtime.plan import FallbackStep, ParameterSpec, Plan
from ..base import Inputs, Kept, KeptPlan, Observer, Results, Stage, Tree, grouped, step_observer
from ..options import TargetOptions
from ..shown import renamed, with_lengths
from ..split_point import SplitCompiled, SplitPoint
from ..symbolic_split import SymbolicSplit

if TYPE_CHECKING:
    from ...graph.program import Program
    from ...graph.rewrite_log import RewriteLog


class DeviceCalls(ABC):
    """The ways to call a program on a device, with one plan or several; see `OnDevice`."""

    _engine: Engine
    _options: TargetOptions
    observe: Callable[[Inputs, Observer], Results]

    @property
    def device(self) -> int:
        return self._engine.number

    @property
    def offload_copy(self) -> bool:
        return self._options.offload_copy

    def run(self, inputs: Mapping[str, object], stream: int | None = None) -> list[object]:
        """See `Compiled.run`; inputs may lie on the device, and results stay there unless they are copied to the
        host."""
        return self.run_staying(inputs, stream, not self.offload_copy)

    def run_there(self, inputs: Mapping[str, object], stream: int | None = None) -> list[object]:
        return self.run_staying(inputs, stream, True)

    @abstractmethod
    def run_staying(self, inputs: Mapping[str, object], stream: int | None, stays: bool) -> list[object]:
        """Run as `run` does; ``stays`` says whether results stay on the device."""

    def held(self, inputs: Mapping[str, object]) -> HeldCall | None:
        """See `OnDevice.held`."""
        return None

    def updated_inputs(self) -> dict[int, str]:
        """See `OnDevice.updated_inputs`."""
        return {}

    @abstractmethod
    def run_on(self, queue: Queue, inputs: Mapping[str, object]) -> Results:
        """Enqueue a run on inputs that lie on the device, as part of an enclosing plan; return new results.

        The run is complete on return only if its last step is a fallback step, or if kernels check indices.
        """

    def run_in(self, inputs: Mapping[str, object], stream: int) -> list[object]:
        return self.run(inputs, stream)

    def trace(self, inputs: Mapping[str, object], level: int, out: TextIO) -> list[object]:
        """See `Compiled.trace`; results are where `run` leaves them."""
        from ..tracing import traced  # late: few programs are traced

        results = traced(lambda observer: self.observe(inputs, observer), level, out)
        return results if self.offload_copy else [self._on_device(r) for r in results]

    def _on_device(self, value: Any) -> object:
        if isinstance(value, list):
            return [self._on_device(v) for v in value]
        return value if value.dtype.hasobject else to_device(self._engine, value, "a result")


class DeviceProgram(DeviceCalls):
    """A compiled program with one plan, the trees that group its results into tuples (None: no result is a tuple), and
    its engine; see `Compiled`."""

    def __init__(
        self,
        engine: Engine,
        options: TargetOptions,
        plan: Plan | None,
        trees: list[Tree] | None,
        optimized: Callable[[], Program],
        log: RewriteLog | None = None,
        constants: DeviceConstants | None = None,
    ) -> None:
        """Create the program.

        Args:
            engine: the engine that runs the plan.
            options: options of the compilation.
            plan: the plan; None with dynamic inputs.
            trees: group the results into tuples.
            optimized: returns the program that was lowered; called once, when the program is to be shown.
            log: rewrite log of the compilation; None: the program's.
            constants: constants on the device that several plans share.
        """
        self._engine = engine
        self._options = options
        self._plan = plan
        self._trees = trees
        self._optimized = optimized
        self._log = log
        self._shared = constants
        self._lock = threading.Lock()

    @functools.cached_property
    def program(self) -> Program:
        return self._optimized()

    @functools.cached_property
    def executable(self) -> DeviceExecutable | None:
        """The plan's executable; None with dynamic inputs.

        For a plan from a file it is made at the first use: the constants are read by then.
        """
        with self._lock:
            known = self.__dict__.get("executable")
            if known is not None or self._plan is None:
                return known
            made = DeviceExecutable(self._plan, self._engine, None, self._options.store, self._shared)
            self.__dict__["executable"] = made
            return made

    def serves(self, inputs: Mapping[str, object]) -> bool:
        lengths, shapes = self._lengths(), self._shapes(inputs)
        if lengths is not None:
            return lengths.bound(shapes) is not None
        return all(not p.lens or p.lens == own for p, own in zip(self.first_plan().parameters, shapes))

    def symbol_values(self, inputs: Mapping[str, object]) -> dict[Dim, int] | None:
        lengths = self._lengths()
        if lengths is not None:
            return lengths.values(self._shapes(inputs))
        return {} if self.serves(inputs) else None

    def first_plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def own_plans(self) -> list[Plan]:
        return [self.first_plan()]

    def _lengths(self) -> OpenLengths | None:
        return None if self.executable is None else self.executable.lengths

    def _shapes(self, inputs: Mapping[str, object]) -> Shapes:
        return tuple([lens_of(inputs[p.name]) for p in self.first_plan().parameters])

    def _shown(self, inputs: Mapping[str, object]) -> tuple[Program, Callable[[str], str]]:
        """Return the program with the inputs' lengths, and a function that maps an instruction's text in the plan to
        its text there."""
        return with_lengths(self.program, self.symbol_values(inputs))

    def output_parameters(self) -> dict[str, Shape]:
        """See `OnDevice.output_parameters`; empty with dynamic inputs, and if a result is a tuple."""
        executable = self.executable
        if self.offload_copy or executable is None or executable.lengths is not None or self._trees is not None:
            return {}
        return {output_buffer(k): s for k, s in enumerate(executable.result_shapes()) if s is not None}

    def entry(self) -> Callable[[Sequence[Any], Sequence[Any], int | None], Results] | None:
        executable = self.executable
        if executable is None or self._trees is not None or executable.lengths is not None:
            return None
        return None if None in executable.result_shapes() else executable.run

    def updated_inputs(self) -> dict[int, str]:
        if self.executable is None or self.entry() is None:
            return {}
        plan = self.executable.plan
        return {result: plan.parameters[own].name for result, own in plan.updates}

    def _arrays(self, inputs: Inputs) -> Results:
        assert self.executable is not None
        given = ((p, inputs[p.name]) for p in self.executable.plan.parameters)
        return [v if isinstance(v, DeviceArray) else self._of_host(p, v) for p, v in given]

    def _of_host(self, parameter: ParameterSpec, value: np.ndarray) -> object:
        """Return a host array in the form that the plan takes; a told length needs no memory on host or device."""
        if is_explicit(parameter):
            return DeviceArray(Shape(Type.bool_type, value.shape), 0, self._engine.number)
        return row_major(value)

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[object]:
        executable = self.executable
        assert executable is not None
        outputs = None
        if stays:
            outputs = [inputs.get(output_buffer(k)) for k in range(len(executable.plan.outputs))]
        return grouped(self._trees, executable.run(self._arrays(inputs), outputs, stream))

    def held(self, inputs: Inputs) -> HeldCall | None:
        executable = self.executable
        if executable is None or self._trees is not None or not holds(executable.plan):
            return None
        outputs = [inputs.get(output_buffer(k)) for k in range(len(executable.plan.outputs))]
        return HeldCall(executable, self._arrays(inputs), outputs)

    def run_on(self, queue: Queue, inputs: Mapping[str, object]) -> Results:
        assert self.executable is not None
        return grouped(self._trees, self.executable.run_on(queue, self._arrays(inputs)))

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        """Return None: host arrays are copied, and copies take most of a call's time. `entry` is for arrays on the
        device."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        return self._shown(inputs)[0]

    def observe(self, inputs: Mapping[str, object], observer: Observer) -> list[object]:
        """See `Compiled.observe`; seconds are device times. Inputs come from the host, and results go there."""
        inputs = {name: on_host(self._engine, value) for name, value in inputs.items()}
        assert self.executable is not None
        note = step_observer(observer, self._shown(inputs)[1])
        return grouped(self._trees, self.executable.run_traced(self._arrays(inputs), note))

    def step_seconds(self, inputs: Mapping[str, object]) -> list[float]:
        inputs = {name: on_host(self._engine, value) for name, value in inputs.items()}
        assert self.executable is not None
        return self.executable.time_steps(self._arrays(inputs))

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        assert self.executable is not None
        program, text = self._shown(inputs)
        plan = self.executable.at(self._arrays(inputs)).plan
        if program is not self.program:
            plan = dataclasses.replace(plan, steps=[renamed(step, text) for step in plan.steps if runs(step)])
        return [Stage(program, plan)]

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Do nothing: the overhead of a call is not measured yet."""

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels, in order of first use."""
        return list(dict.fromkeys(self._plan.kernels() if self._plan is not None else ()))

    def fallback_reasons(self) -> dict[str, str]:
        """See `Compiled.fallback_reasons`; empty with dynamic inputs, where each plan has reasons of its own."""
        steps = self._plan.steps if self._plan is not None else []
        return {step.instruction: step.reason for step in steps if isinstance(step, FallbackStep)}

    def rewrite_log(self) -> RewriteLog:
        from ...graph.rewrite_log import RewriteLog  # late: imports all operators

        log = RewriteLog()
        log.include(self._log or self.program.log)
        return log

    def kept_plan(self) -> Kept | None:
        """See `Compiled.kept_plan`; None for plans that call libraries, which may be other versions at the next
        start."""
        plan = self._plan
        if plan is None or any(described(kernel) is not None for kernel in plan.kernels()):
            return None
        return KeptPlan(plan, self._trees)

    def machine_code(self) -> dict[str, object]:
        """See `Compiled.machine_code`; covers all kernels that the program has so far."""
        from ...codegen.embedding import embed  # late: few programs are saved with machine code

        return embed([*self.kernels(), transfer_kernel()], self._options.store)


class OpenLengthsProgram(DeviceProgram):
    """A program with dynamic inputs, of which each plan serves some lengths."""

    def output_parameters(self) -> dict[str, Shape]:
        """Return an empty dictionary: lengths are not known before a run. See `OnDevice.output_parameters`."""
        return {}

    def entry(self) -> None:
        """Return None: lengths are not known before a run. See `OnDevice.entry`."""

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels of all plans made so far."""
        return list(dict.fromkeys(kernel for part in self._parts() for kernel in part.kernels()))

    def _parts(self) -> Results:
        raise NotImplementedError


def on_host(engine: Engine, value: object) -> Any:
    """Return a value as a host array; an array on the device is copied."""
    if not isinstance(value, DeviceArray):
        return value
    return to_host(engine, value).reshape(value.shape.array_lens)


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
