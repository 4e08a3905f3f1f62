"""What all targets give: a compiled program that runs, traces and lists its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

import numpy as np

from ..dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.shape import Shape
    from ..graph.program import Program
    from ..graph.rewrite_log import RewriteLog
    from ..runtime.plan import Plan, PlannedStep, TensorView
    from .seam import Seam

__all__ = [
    "Compiled", "Direct", "Exportable", "Growing", "Kept", "KeptChoice", "KeptPlan", "KeptStages", "Observation",
    "OnDevice", "OpenPlan", "OpenPlanned", "Outgrown", "Planned", "Progress", "Repeatable", "Stage",
    "ThreadSpan", "Timed", "Tree", "grouped", "stages_of", "step_observer", "units_of",
]  # fmt: skip

Tree = Any
"""Position of an array among the results, or a list of trees for a tuple."""

Progress = Callable[[int, int, str], None]


class Outgrown(Exception):
    """A program that was read from a file has no plan for the lengths of a run; it has to be compiled."""


Direct = Callable[[Any], "list[Any] | None"]
"""A quick form of a run; see `Compiled.direct`."""


@dataclass(frozen=True)
class Observation:
    """One step of a run.

    Attributes:
        instruction: printed text of the instruction that it serves.
        label: what ran, in MIGraphX's style (``cpu::mul_add_kernel``, ``ref::topk``).
        seconds: how long it took.
        outputs: gives the arrays that it wrote; valid until the observer returns.
        flops: operations that it computed, 0 if not known.
        bytes: the least that it must move, 0 if not known.
        reason: why the host computes it, where a kernel could have; else empty.
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
    """A thread's part of one step: ``instruction``, ``label`` and ``reason`` as in `Observation`, the ``thread`` (0 is
    the caller), and from when to when, in nanoseconds."""

    instruction: str
    label: str
    thread: int
    start: int
    end: int
    reason: str = ""


@dataclass(frozen=True)
class KeptPlan:
    """A plan that a file can hold, and how its results are grouped into tuples (None: they are not)."""

    plan: Plan
    trees: list[Tree] | None


@dataclass(frozen=True)
class KeptStages:
    """Two stages of a program; ``given`` whether the second one's plan has lengths of the first one's inputs, too."""

    head: Kept
    tail: Kept
    seam: Seam
    trees: list[Tree] | None
    given: bool


@dataclass(frozen=True)
class KeptChoice:
    """Plans of a program with dynamic inputs.

    Attributes:
        names: of the dynamic inputs.
        plans: for many lengths, in the order in which they are asked whether they serve.
        fixed: for one set of lengths of these inputs each.
    """

    names: tuple[str, ...]
    plans: tuple[Kept, ...]
    fixed: tuple[tuple[tuple[tuple[int, ...], ...], Kept], ...]


Kept = KeptPlan | KeptStages | KeptChoice
"""What a file can hold of a compiled program, see `Compiled.kept_plan`."""


@dataclass(frozen=True)
class Stage:
    """A part of a compiled program, for some inputs.

    Attributes:
        program: as it runs.
        plan: its steps are those that are observed, in order; None of targets that have no plans.
        passed: parameters that the stage before has computed, by name: which of its results each is.
    """

    program: Program
    plan: Plan | None
    passed: Mapping[str, int] = field(default_factory=dict)


Observer = Callable[[Observation], None]


def units_of(stages: Sequence[Stage]) -> list[str]:
    """The units that multiply in the steps of plans and have limits of their own, as `Step.unit` calls them."""
    steps = [step for stage in stages if stage.plan is not None for step in stage.plan.steps]
    return sorted({step.unit for step in steps} - {""})


class Compiled(Protocol):
    """A program compiled for a target."""

    @property
    def program(self) -> Program:
        """The program as it runs; passes are applied if its lengths are known."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Results for checked inputs by name. Inputs have the lengths of their shapes; results have the model's rank,
        that is `Shape.array_lens`."""

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[Direct | None], None] | None = None
    ) -> Direct | None:
        """A quick form of ``run``, if there is one: it takes what a caller gave, unchecked, and returns new arrays of
        this type, or None, having done nothing, where that is for ``run``. Of a form that looks for lengths first
        ``prefer`` is told which is quicker for those of late (None: no other is): where that gives None, the form
        itself is asked."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """The program as it runs on these inputs: dynamic lengths are settled, passes applied."""

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        """As ``run``, one step after the other, telling the observer of each."""

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """What ``run`` does besides its steps: the cost of a call."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """As ``run``, printing each instruction, its time (1), a summary (2) or all of its output (3)."""

    def kernels(self) -> list[Any]:
        """The distinct kernels, in order of first use."""

    def host_reasons(self) -> Mapping[str, str]:
        """Why the host computes instructions that kernels could: reasons by printed instruction."""

    def rewrite_log(self) -> RewriteLog:
        """What passes and lowering did to the program and what they refused, with the reasons."""

    def kept_plan(self) -> Kept | None:
        """What `Target.restore` makes this program of again; None if it cannot."""

    def machine_code(self) -> dict[str, Any]:
        """The kernels' objects as a value tree.

        Raises:
            OptionError: the target makes none.
        """


@runtime_checkable
class Timed(Protocol):
    """A compiled program whose threads can say when they worked at what."""

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[Any], list[ThreadSpan]]:
        """Run once; return the results, and the spans of all threads in the order of their beginnings."""


@runtime_checkable
class Repeatable(Protocol):
    """A compiled program whose steps are so short that one alone takes longer to start and to time than to run."""

    def step_seconds(self, inputs: Mapping[str, np.ndarray]) -> list[float]:
        """Seconds of each step, in the order in which `Compiled.observe` tells of them: of a kernel the mean of several
        in a row."""


@runtime_checkable
class Exportable(Protocol):
    """A compiled program that can become a library for C and C++."""

    def export_library(
        self, folder: Path, name: str, output_names: Sequence[str], embed_weights: bool, link: bool | None
    ) -> Path:
        """Write a shared library that runs the program without Python; arguments, result and further errors are those
        of `runtime.cpu.library.writer.write_library`, but that ``output_names`` has one for each result.

        Raises:
            UnsupportedError: lengths are not known before a run.
        """


@runtime_checkable
class OnDevice(Protocol):
    """A compiled program that runs on a device: its inputs may lie there (`DeviceArray`), and its results stay there if
    they are not copied to the host."""

    @property
    def device(self) -> int:
        """The device's number."""

    @property
    def offload_copy(self) -> bool:
        """Whether results are copied to the host."""

    def output_parameters(self) -> Mapping[str, Shape]:
        """Results that a caller may give memory for, among the inputs, by name; none where they are copied."""

    def run_in(self, inputs: Mapping[str, Any], stream: int) -> list[Any]:
        """As ``run``, in the order of a stream of the driver; it may still be running then."""

    def run_there(self, inputs: Mapping[str, Any]) -> list[Any]:
        """As ``run``, with results that stay on the device whatever `offload_copy` says."""

    def entry(self) -> Callable[[Sequence[Any], Sequence[Any], int | None], list[Any]] | None:
        """What runs the program on its inputs in order, memory (or None) for each result, and a stream or None; None
        if lengths have to be known before, or results are grouped into tuples."""


@runtime_checkable
class Growing(Protocol):
    """A compiled program that makes plans in runs, for lengths that it meets."""

    def keep_growth(self, keep: Callable[[Compiled], None]) -> None:
        """Have ``keep`` called with the program when it has twice as many plans as when that was done last."""


@dataclass(frozen=True)
class OpenPlan:
    """One plan of a program with dynamic inputs.

    Attributes:
        symbols: the open lengths, with their ranges.
        guards: questions that ranges do not decide, as ``question: answer (who asked)``: the plan serves lengths that
            answer alike.
        steps: how many it has.
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
    """A compiled program whose plans serve many lengths."""

    def open_plans(self) -> list[OpenPlan]:
        """Its plans so far, the one first that served last."""


@runtime_checkable
class Planned(Protocol):
    """A compiled program that runs plans."""

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        """What runs on these inputs, in order: one stage, or several where lengths depend on their values."""


def stages_of(compiled: Compiled, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
    """`Planned.stages`; of a program that runs without a plan, the one that it is."""
    return compiled.stages(inputs) if isinstance(compiled, Planned) else [Stage(compiled.resolve(inputs), None)]


def step_observer(observer: Observer) -> Callable[[int, PlannedStep, float, Callable[[TensorView], np.ndarray]], None]:
    """What tells the observer of a step of a plan: takes its number, the step, its seconds, and what gives the array of
    a tensor."""

    def note(index: int, step: PlannedStep, seconds: float, view: Callable[[TensorView], np.ndarray]) -> None:
        def outputs() -> list[np.ndarray]:
            return [view(v) for v in step.outputs]

        observer(Observation(step.instruction, step.label, seconds, outputs, step.flops, step.bytes, step.reason))

    return note


def grouped(trees: list[Tree] | None, arrays: list[Any]) -> list[Any]:
    """Arrays put together again as trees say; as they are without any."""
    return arrays if trees is None else [_group(tree, arrays) for tree in trees]


def _group(tree: Tree, arrays: list[Any]) -> Any:
    return arrays[tree] if isinstance(tree, int) else [_group(t, arrays) for t in tree]
