"""Interfaces of compiled programs, for every target: run, observe, list kernels, export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

import numpy as np

from ..core.output_buffers import OUTPUT_BUFFERS
from ..dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from ..codegen.kernel import KernelSource
    from ..core.device_array import DeviceArray
    from ..core.shape import Shape
    from ..graph.program import Program
    from ..graph.rewrite_log import RewriteLog
    from ..runtime.library_form import LibraryForm
    from ..runtime.plan import Plan, PlannedStep, TensorView
    from .split_point import SplitPoint

Inputs = Mapping[str, Any]
"""Inputs of a run by name: arrays of the host or of a device, also other libraries', and buffers for results."""

Results = list[Any]
"""Results of a run: arrays of the host or of a device, and a list of results for a tuple."""

Tree = Any
"""Position of an array among a plan's results, or a list of trees for a tuple."""

Progress = Callable[[int, int, str], None]


class Outgrown(Exception):
    """Raised when a program read from a file has no plan for a run's lengths; the program has to be compiled again."""


FastPath = Callable[[object], "Results | None"]
"""A fast path of a run; see `Compiled.direct`."""


@dataclass(frozen=True)
class Observation:
    """One observed step of a run.

    Attributes:
        instruction: printed text of the instruction that the step serves.
        label: name of the executed kernel or operator, in MIGraphX's style (``cpu::mul_add_kernel``, ``ref::topk``).
        seconds: duration of the step.
        outputs: returns the arrays that the step wrote; valid until the observer returns.
        flops: operations of the step, 0 if not known.
        bytes: lower bound of the step's memory traffic, 0 if not known.
        reason: why the host computes the instruction although kernels exist for its operator; else empty.
    """

    instruction: str
    label: str
    seconds: float
    outputs: Callable[[], list[np.ndarray]]
    flops: int = 0
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ThreadSpan:
    """The time that one thread spent in one step.

    ``instruction``, ``label`` and ``reason`` are as in `Observation`. ``thread`` 0 is the caller. Start and end are in
    nanoseconds.
    """

    instruction: str
    label: str
    thread: int
    start: int
    end: int
    reason: str = ""


@dataclass(frozen=True)
class KeptPlan:
    """A plan that a file can hold, and the trees that group its results into tuples (None: no result is a tuple).

    ``symbols`` holds the symbols of the executor's own kernels, in the executor's order.
    """

    plan: Plan
    trees: list[Tree] | None
    symbols: Sequence[str] = ()


@dataclass(frozen=True)
class KeptSplit:
    """Two stages of a program; ``given``: whether the second stage's plan also takes lengths of the first stage's
    inputs."""

    head: Kept
    tail: Kept
    split_point: SplitPoint
    trees: list[Tree] | None
    given: bool


@dataclass(frozen=True)
class KeptChoice:
    """The plans of a program with dynamic inputs.

    Attributes:
        names: names of the dynamic inputs.
        plans: symbolic plans, in the order in which a run checks their guards.
        fixed: plans for one set of lengths of the dynamic inputs each, with these lengths.
    """

    names: tuple[str, ...]
    plans: tuple[Kept, ...]
    fixed: tuple[tuple[tuple[tuple[int, ...], ...], Kept], ...]


Kept = KeptPlan | KeptSplit | KeptChoice
"""The part of a compiled program that a file can hold; see `Compiled.kept_plan`."""


@dataclass(frozen=True)
class Stage:
    """A part of a compiled program, for one set of inputs.

    Attributes:
        program: the program after all passes.
        plan: the stage's plan, whose steps an observer sees in order; None for targets without plans.
        passed: for each parameter that the previous stage computes, by name: the number of that stage's result.
    """

    program: Program
    plan: Plan | None
    passed: Mapping[str, int] = field(default_factory=dict)


Observer = Callable[[Observation], None]


def without_buffers(inputs: Mapping[str, object]) -> Mapping[str, object]:
    """Return inputs without memory for results, whose numbers count the results of a whole program."""
    if not any(name.startswith(OUTPUT_BUFFERS) for name in inputs):
        return inputs
    return {name: value for name, value in inputs.items() if not name.startswith(OUTPUT_BUFFERS)}


def units_of(stages: Sequence[Stage]) -> list[str]:
    """Return the names (`Step.unit`) of the arithmetic units with own limits that the stages' steps use, sorted."""
    steps = [step for stage in stages if stage.plan is not None for step in stage.plan.steps]
    return sorted({step.unit for step in steps} - {""})


class Compiled(Protocol):
    """A program compiled for a target."""

    @property
    def program(self) -> Program:
        """The program that runs: after the passes if all lengths are known, else as it was given."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> Results:
        """Return the results for checked inputs, by name. Inputs have the lengths of their shapes. Results have the
        model's rank (`Shape.array_lens`)."""

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path of `run`, or None if the program has none.

        The fast path takes the caller's inputs unchecked. It returns new arrays of ``result_type``, or None without
        having done anything; the caller then calls `run`.

        Args:
            result_type: array class of the results.
            prefer: called by a fast path that dispatches on lengths, with a quicker fast path for the lengths of recent
                runs (None: there is none). Where the quicker path returns None, the caller calls the dispatching path.
        """

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """Return the program that runs on these inputs: dynamic lengths replaced by numbers, passes applied."""

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[object]:
        """Run step by step, call the observer after each step, and return the results."""

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Do the work of `run` except its steps; measures the overhead of a call."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[object]:
        """Run, print each instruction with its time (level 1), a summary (2) or its complete output (3); return the
        results."""

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels, in order of first use."""

    def fallback_reasons(self) -> Mapping[str, str]:
        """Return why the host computes instructions for which kernels exist: reasons by printed instruction."""

    def rewrite_log(self) -> RewriteLog:
        """Return the log of rewrites that passes and lowering applied, and of the refused rewrites with reasons."""

    def kept_plan(self) -> Kept | None:
        """Return the data from which `Target.restore` rebuilds this program; None if no file can hold the program."""

    def machine_code(self) -> dict[str, object]:
        """Return the kernels' object code as a value tree.

        Raises:
            OptionError: the target generates no machine code.
        """


@runtime_checkable
class Timed(Protocol):
    """A compiled program that can record which thread worked on which step, and when."""

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[object], list[ThreadSpan]]:
        """Run once; return the results, and the spans of all threads ordered by start."""


@runtime_checkable
class Repeatable(Protocol):
    """A compiled program with steps too short to time alone: starting and timing such a step takes longer than the
    step."""

    def step_seconds(self, inputs: Mapping[str, np.ndarray]) -> list[float]:
        """Return the seconds of each step, in the order of `Compiled.observe`; for a kernel the mean of several runs in
        a row."""


@runtime_checkable
class Exportable(Protocol):
    """A compiled program that can be exported as a library for C and C++."""

    def export_library(self, folder: Path, name: str, output_names: Sequence[str], form: LibraryForm) -> Path:
        """Write a shared library that runs the program without Python.

        Arguments, result and further errors are as in `runtime.cpu.library.writer.write_library`, except that
        ``output_names`` has a name for each result.

        Raises:
            UnsupportedError: the first run makes a plan.
        """


class RecordableCall(Protocol):
    """A call with all data on a device; one recording can contain several such calls.

    Attributes:
        results: arrays on the device, which each execution of the recording overwrites.
    """

    results: list[DeviceArray]

    def enqueue(self, queue: object) -> None:
        """Enqueue the call; ``queue`` is a device's queue that is recording."""

    def raise_fault(self) -> None:
        """Raise the error that a kernel recorded, once the call is complete.

        Raises:
            IndexRangeError: an index is out of range.
        """


@runtime_checkable
class OnDevice(Protocol):
    """A compiled program that runs on a device: inputs may lie on the device (`DeviceArray`). Results stay there unless
    they are copied to the host."""

    @property
    def device(self) -> int:
        """The device's number."""

    @property
    def offload_copy(self) -> bool:
        """Whether results are copied to the host."""

    def output_parameters(self) -> Mapping[str, Shape]:
        """Return the shapes, by name, of the inputs that are memory for results; empty if results are copied to the
        host."""

    def run_in(self, inputs: Mapping[str, object], stream: int) -> list[object]:
        """Enqueue a run on a stream of the driver and return its results, which the device may still be computing."""

    def run_there(self, inputs: Mapping[str, object], stream: int | None = None) -> Results:
        """Run with results that stay on the device, whatever `offload_copy` says; with a stream as `run_in` does."""

    def held(self, inputs: Mapping[str, object]) -> RecordableCall | None:
        """Return a call on these inputs, all on the device, to record with others; results stay there.

        None if the host takes part in the call, or if results are tuples.
        """

    def updated_inputs(self) -> Mapping[int, str]:
        """Return by number the results that may be in the memory of an input, such as an updated cache, and its name;
        empty where `entry` is None."""

    def entry(self) -> Callable[[Sequence[Any], Sequence[Any], int | None], Results] | None:
        """Return a function that runs the program on positional arguments, or None.

        The function takes the inputs in order, memory (or None) for each result, and a stream or None. There is no such
        function if lengths have to be known first, or if results are tuples.
        """


@runtime_checkable
class KeepsObjects(Protocol):
    """A compiled program whose kernels' objects a plan's file may hold."""

    def stored_objects(self) -> dict[str, bytes]:
        """Return the objects of all kernels that the program has so far, by symbol, as far as they are stored."""


@runtime_checkable
class Growing(Protocol):
    """A compiled program that makes further plans during runs, for lengths that no plan serves."""

    def keep_growth(self, keep: Callable[[Compiled], None]) -> None:
        """Have ``keep`` called with the program each time that its number of plans has doubled since the last call."""


@dataclass(frozen=True)
class OpenPlan:
    """A description of one symbolic plan of a program with dynamic inputs.

    Attributes:
        symbols: the symbolic lengths, with their ranges.
        guards: conditions that the ranges do not decide, as ``condition: answer (place in the code)``. The plan serves
            lengths with the same answers.
        steps: number of steps.
        alternatives: steps that only some lengths take, as ``label, where condition``.
    """

    symbols: tuple[str, ...]
    guards: tuple[str, ...]
    steps: int
    alternatives: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"plan of {self.steps} steps for {', '.join(self.symbols) or 'no open lengths'}"]
        for title, found in (("guards", self.guards), ("steps that some lengths take", self.alternatives)):
            if found:
                lines += [f"  {title}:", *(f"    {line}" for line in found)]
        return "\n".join(lines)


@runtime_checkable
class OpenPlanned(Protocol):
    """A compiled program with symbolic plans, each of which serves many lengths."""

    def open_plans(self) -> list[OpenPlan]:
        """Return descriptions of the symbolic plans made so far, most recently used first."""


@runtime_checkable
class Planned(Protocol):
    """A compiled program that runs plans."""

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """Return the stages that run on these inputs, in order: several if lengths depend on the inputs' values."""


def stages_of(compiled: Compiled, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
    """Return the program's stages; for a program without plans a single stage without a plan."""
    return compiled.stages(inputs) if isinstance(compiled, Planned) else [Stage(compiled.resolve(inputs), None)]


def step_observer(
    observer: Observer, text: Callable[[str], str]
) -> Callable[[int, PlannedStep, float, Callable[[TensorView], np.ndarray]], None]:
    """Return a function that reports a plan's step to ``observer``, its instruction's text mapped by ``text``.

    The function takes the step's number, the step, its seconds, and a function that returns the array of a tensor.
    """

    def note(index: int, step: PlannedStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
        def outputs() -> list[np.ndarray]:
            return [view(v) for v in step.outputs]

        shown = text(step.instruction)
        observer(Observation(shown, step.label, seconds, outputs, step.flops, step.bytes, step.reason))

    return note


def grouped(trees: list[Tree] | None, arrays: Results) -> Results:
    """Return the arrays grouped into tuples by ``trees``; unchanged if ``trees`` is None."""
    return arrays if trees is None else [_group(tree, arrays) for tree in trees]


def _group(tree: Tree, arrays: list[object]) -> object:
    return arrays[tree] if isinstance(tree, int) else [_group(t, arrays) for t in tree]
