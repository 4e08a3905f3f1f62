"""A plan: what one program does on one machine, as data.

A plan is a list of steps over one arena. Steps run in order, each after all before it are complete; the tiles
of one step run in any order, on any number of threads.

A *symbolic* plan serves many sets of shapes: its lengths, arguments, task counts and offsets may be expressions over
symbols (`core.dim.Dim`, where the annotations say ``int``). A run evaluates them for the lengths of its inputs, and
leaves out the steps that have no tasks then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..codegen.backend import backend
from ..codegen.kernel import KernelSource
from ..codegen.launch import Geometry, TensorLayout
from ..core.dim import Dim, Length
from ..dataclass import dataclass
from .size_program import SizeProgram

__all__ = [
    "CarriedValue",
    "ControlStep",
    "DeviceFunction",
    "HostStep",
    "Jump",
    "MappedTensor",
    "ParameterSpec",
    "Plan",
    "PlannedBody",
    "PlannedBranch",
    "PlannedStep",
    "Pointer",
    "Region",
    "Repetition",
    "Scan",
    "Step",
    "TensorSpec",
    "TensorView",
    "Use",
]


class Region(IntEnum):
    """Where memory that a plan names lives.

    ``ARENA``: the run's own scratch memory. ``CONSTANT``: `Plan.constants`. ``PARAMETER``: the caller's
    inputs. ``OUTPUT``: arrays made for this run and given to the caller. ``HOST``: arrays that host steps of
    this run returned, numbered by the plan; for values whose shape is known only then. ``FAULT``: the call's fault
    record (`codegen.launch.Mark`).
    """

    ARENA = 0
    CONSTANT = 1
    PARAMETER = 2
    OUTPUT = 3
    HOST = 4
    FAULT = 5


class Pointer(NamedTuple):
    """A place: ``offset`` bytes into the ``index``-th array of a region (``index`` is 0 for the arena)."""

    region: Region
    index: int = 0  # type: ignore[assignment]  # not the method of a tuple
    offset: int = 0


@dataclass(frozen=True)
class MappedTensor:
    """What describes a tensor at a place to a GPU's copy engine (`codegen.launch.TensorMap`)."""

    pointer: Pointer
    layout: TensorLayout


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory: ``strides`` in elements, ``dtype`` by NumPy or ml_dtypes name.

    In the ``HOST`` region, and for an output without declared lens, ``lens`` and ``strides`` are ignored: the
    value is the whole array.
    """

    pointer: Pointer
    dtype: str
    lens: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One kernel over all of ``geometry``.

    ``args`` fills the kernel's argument block slot by slot: integers as they are, pointers as addresses, kernels that
    the step's kernel calls as the addresses of their code; a mapped tensor fills its slot and the 15 that follow.
    ``flops`` and ``bytes`` are what it computes and moves, for reports; ``label`` and ``instruction`` name it
    for readers, and ``outputs`` are the tensors it writes, for traces. ``checks`` has for each check of the kernel the
    operator and what its indices have to fit, for the message of a fault. ``along`` are instructions that it computes
    on the way to its own.
    """

    kernel: KernelSource
    args: tuple[int | Pointer | MappedTensor | KernelSource, ...]
    geometry: Geometry
    label: str = ""
    instruction: str = ""
    flops: int = 0
    bytes: int = 0
    outputs: tuple[TensorView, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    along: tuple[str, ...] = ()
    reason: ClassVar[str] = ""

    @property
    def unit(self) -> str:
        """What multiplies in the kernel, see `Backend.unit`; empty where nothing is counted."""
        called = (arg for arg in self.args if isinstance(arg, KernelSource))
        counted = isinstance(self.flops, Dim) or self.flops
        return backend(self.kernel.backend).unit((self.kernel, *called)) if counted else ""


HostFunction = Callable[[list[np.ndarray]], Sequence[np.ndarray]]
DeviceFunction = Callable[[Any, Any, list[Any]], Sequence[Any] | None]


@dataclass(frozen=True)
class HostStep:
    """A Python function between kernels: takes one array an input, returns one array an output.

    The inputs are views of memory that is reused later: the function must not keep or write them. Results are
    copied into the outputs' memory, or kept as they are where an output is ``HOST`` or an output without
    declared lens. ``plans`` are those that the function runs, ``kernels`` what plans that it makes may need;
    ``reason`` is why no kernel does it, behind the name of the lowering rule that refused. ``on_device`` does it where
    the plan's kernels run, for the engine, the queue and the inputs as tensors of the device or of the host; None from
    it leaves it to the function. ``bind`` returns the function for the values of a symbolic plan's symbols; it is
    called once for each set of lengths that a run meets in succession. Without it ``function`` serves all lengths.
    ``write`` gives JSON values of which both are made again (`plan_json`); without it the step is in no file.
    """

    function: HostFunction
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    label: str = ""
    instruction: str = ""
    plans: tuple[Plan, ...] = ()
    reason: str = ""
    kernels: tuple[KernelSource, ...] = ()
    on_device: DeviceFunction | None = None
    bind: Callable[[Mapping[Dim, int]], HostFunction] | None = None
    write: Callable[[Any], Any] | None = None
    flops: ClassVar[int] = 0
    bytes: ClassVar[int] = 0
    unit: ClassVar[str] = ""


@dataclass(frozen=True)
class PlannedBody:
    """A plan that runs within another one: where that has its parameters, and where it wants its results, row-major."""

    plan: Plan
    arguments: tuple[TensorView, ...]
    results: tuple[TensorView, ...]


@dataclass(frozen=True)
class PlannedBranch:
    """The first body where ``condition`` (one bool) is true, else the second; ``places`` is what errors in them begin
    with."""

    condition: TensorView
    bodies: tuple[PlannedBody, PlannedBody]
    places: tuple[str, str]


@dataclass(frozen=True)
class CarriedValue:
    """A value that each iteration of a loop makes anew: its ``initial`` one, and two places that take turns. Bodies are
    planned to read ``now`` and to write ``following``; after the last iteration it is in ``now``."""

    initial: TensorView
    now: TensorView
    following: TensorView


@dataclass(frozen=True)
class Scan:
    """What each iteration adds to a result: ``row``, where the body has it, goes into ``whole``, from its end if
    ``backwards``."""

    row: TensorView
    whole: TensorView
    backwards: bool


@dataclass(frozen=True)
class Repetition:
    """A body that runs ``trips`` (one int64) times, or until ``condition`` (one bool) is false.

    Attributes:
        carried: what iterations hand on.
        going: which of these is the condition; None if it stays as it is.
        scans: results of a row for each iteration.
        most: iterations that may run; ``too_long`` gives what is raised if ``trips`` are more and none ends them.
        place: gives what errors in an iteration begin with.
    """

    body: PlannedBody
    trips: TensorView
    condition: TensorView
    carried: tuple[CarriedValue, ...]
    going: int | None
    scans: tuple[Scan, ...]
    most: int
    too_long: Callable[[int], Exception]
    place: Callable[[int], str]


@dataclass(frozen=True)
class ControlStep:
    """Bodies that run where the plan's kernels do; the host reads which, and how often. ``inputs`` and ``outputs`` are
    all that ``control`` names; only the latter are results."""

    control: PlannedBranch | Repetition
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    label: str = ""
    instruction: str = ""
    plans: tuple[Plan, ...] = ()
    flops: ClassVar[int] = 0
    bytes: ClassVar[int] = 0
    reason: ClassVar[str] = ""
    unit: ClassVar[str] = ""


PlannedStep = Step | HostStep | ControlStep


@dataclass(frozen=True)
class Jump:
    """Where steps do not follow each other: loops and branches whose kernels are steps of the plan itself.

    Attributes:
        by: the number of a step whose first argument points to a number (int64).
        at, to: before step ``at`` the run goes on with step ``to`` if the number is not 0, or if it is, as ``where``
            says. A jump back is that of a loop; one forwards leaves out a loop's body, or a branch.
        place: of a jump forwards what errors in the steps that it leaves out begin with: a text, or, of a loop, the
            texts before and after the number of the iteration, to which the second argument of step ``by`` points.
    """

    by: int
    at: int
    to: int
    where: bool
    place: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParameterSpec:
    """An input: C-contiguous array of this dtype and shape; without lens it is one element, of any rank."""

    name: str
    dtype: str
    lens: tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """An output: C-contiguous array; ``lens`` None if only a host step's result says the shape."""

    dtype: str
    lens: tuple[int, ...] | None


@dataclass(frozen=True)
class Use:
    """A buffer of the arena: ``bytes`` from ``offset`` on, from the step that writes it first to the last that needs
    it, counted from 0."""

    offset: int
    bytes: int
    first: int
    last: int


@dataclass
class Plan:
    """Steps with everything they refer to.

    ``arena_bytes`` is the size of the arena, which is 64-byte aligned. ``constants`` are C-contiguous and are
    neither copied nor written. ``parallel`` False keeps all of it on the caller's thread; None lets the
    executor judge. ``uses`` are the arena's buffers, for reports.

    ``symbols`` are those of a symbolic plan, in the order of their first appearance in the parameters' lens; each is
    the whole length of some parameter's axis. ``condition`` is 1 for the lengths that the plan serves, within the
    ranges of the symbols. ``sizes`` are what the lengths of a plan from a file are values of; None of other plans.
    ``jumps`` are looked at in their order where several are at one step.
    """

    steps: list[PlannedStep]
    arena_bytes: int
    constants: list[np.ndarray]
    parameters: list[ParameterSpec]
    outputs: list[TensorSpec]
    parallel: bool | None = field(default=None)
    uses: tuple[Use, ...] = ()
    symbols: tuple[Dim, ...] = ()
    condition: Length = 1
    jumps: tuple[Jump, ...] = ()
    sizes: SizeProgram | None = None

    def size_program(self) -> SizeProgram:
        """Return the size program of a plan from a file, or a new one for the symbols."""
        return SizeProgram(self.symbols) if self.sizes is None else self.sizes

    def all_steps(self) -> Iterator[PlannedStep]:
        """All steps, each before those of plans that it runs."""
        for step in self.steps:
            yield step
            for plan in () if isinstance(step, Step) else step.plans:
                yield from plan.all_steps()

    def kernels(self) -> list[KernelSource]:
        """The distinct kernels of the plan, those that are called by others included, in order of first use; those that
        plans may need which host steps make, too."""
        found: dict[KernelSource, None] = {}
        for step in self.all_steps():
            if isinstance(step, Step):
                found[step.kernel] = None
                found.update([(arg, None) for arg in step.args if type(arg) is KernelSource])
            elif isinstance(step, HostStep):
                found.update(dict.fromkeys(step.kernels))
        return list(found)
