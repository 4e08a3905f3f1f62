"""Plans: the computation of one program on one machine, as data.

A plan is a list of steps over one arena. Steps run in order, each after all steps before it are complete. The tiles of
one step run in any order, on any number of threads.

A *symbolic* plan serves many sets of shapes: its lengths, arguments, task counts and offsets may be expressions over
symbols (`core.dim.Dim`, where the annotations say ``int``). A run evaluates the expressions for the lengths of its
inputs, and skips the steps that have no tasks then.
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
from ..errors import CompileError
from .size_program import SizeProgram


class Region(IntEnum):
    """The kind of memory that a plan's pointer refers to.

    ``ARENA``: the run's own scratch memory. ``CONSTANT``: `Plan.constants`. ``PARAMETER``: the caller's inputs.
    ``OUTPUT``: arrays made for this run and returned to the caller. ``HOST``: arrays that fallback steps of this run
    returned, numbered by the plan; for values whose shape is known only then. ``FAULT``: the call's fault record
    (`codegen.launch.Mark`).
    """

    ARENA = 0
    CONSTANT = 1
    PARAMETER = 2
    OUTPUT = 3
    HOST = 4
    FAULT = 5


class Pointer(NamedTuple):
    """An address: ``offset`` bytes into the ``index``-th array of a region (``index`` is 0 for the arena)."""

    region: Region
    index: int = 0  # type: ignore[assignment]  # not the method of a tuple
    offset: int = 0


@dataclass(frozen=True)
class MappedTensor:
    """A tensor at an address, described for a GPU's copy engine (`codegen.launch.TensorMap`)."""

    pointer: Pointer
    layout: TensorLayout


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory: ``strides`` in elements, ``dtype`` by NumPy or ml_dtypes name.

    In the ``HOST`` region, and for an output without declared lens, ``lens`` and ``strides`` are ignored: the value is
    the whole array.
    """

    pointer: Pointer
    dtype: str
    lens: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One kernel over all of ``geometry``.

    Attributes:
        args: values of the kernel's argument block, slot by slot. Integers are stored unchanged, pointers as addresses,
            called kernels as the addresses of their code. A mapped tensor fills its slot and the 15 that follow.
        flops, bytes: operations and memory traffic, for reports.
        label, instruction: names for readers.
        outputs: tensors that the step writes, for traces.
        checks: for each check of the kernel, the operator and the range of its indices, for the message of a fault.
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
    reason: ClassVar[str] = ""

    @property
    def unit(self) -> str:
        """Name of the arithmetic unit that the kernel multiplies with (`Backend.unit`); empty if no operations are
        counted."""
        called = (arg for arg in self.args if isinstance(arg, KernelSource))
        counted = isinstance(self.flops, Dim) or self.flops
        return backend(self.kernel.backend).unit((self.kernel, *called)) if counted else ""


FallbackFunction = Callable[[list[np.ndarray]], Sequence[np.ndarray]]
DeviceFunction = Callable[[Any, Any, list[Any]], Sequence[Any] | None]


@dataclass(frozen=True)
class FallbackStep:
    """A Python function between kernels; takes one array for each input and returns one array for each output.

    The inputs are views of memory that is reused later: the function must not keep or write them. Results are copied
    into the outputs' memory. They are kept unchanged where an output is in ``HOST`` or has no declared lens.

    Attributes:
        plans: plans that the function runs.
        kernels: kernels that plans made by the function may need.
        reason: why no kernel does the work, after the name of the lowering rule that refused.
        on_device: does the work on the device, given the engine, the queue and the inputs as tensors of device or host.
            If it returns None, ``function`` does the work.
        bind: returns the function for the values of a symbolic plan's symbols. It is called once for each set of
            lengths that a run meets in succession. Without it ``function`` serves all lengths.
        write: returns JSON values from which ``function`` and ``bind`` are made again (`plan_json`). Without it no file
            can hold the step.
    """

    function: FallbackFunction
    inputs: tuple[TensorView, ...]
    outputs: tuple[TensorView, ...]
    label: str = ""
    instruction: str = ""
    plans: tuple[Plan, ...] = ()
    reason: str = ""
    kernels: tuple[KernelSource, ...] = ()
    on_device: DeviceFunction | None = None
    bind: Callable[[Mapping[Dim, int]], FallbackFunction] | None = None
    write: Callable[[object], object] | None = None
    flops: ClassVar[int] = 0
    bytes: ClassVar[int] = 0
    unit: ClassVar[str] = ""


@dataclass(frozen=True)
class PlannedBody:
    """A plan that runs within another plan: views of its parameters, and of its results, row-major, in the outer plan's
    memory."""

    plan: Plan
    arguments: tuple[TensorView, ...]
    results: tuple[TensorView, ...]


@dataclass(frozen=True)
class PlannedBranch:
    """A branch: the first body runs where ``condition`` (one bool) is true, else the second. ``places`` are the
    prefixes of their errors."""

    condition: TensorView
    bodies: tuple[PlannedBody, PlannedBody]
    places: tuple[str, str]


@dataclass(frozen=True)
class CarriedValue:
    """A loop-carried value: its ``initial`` value, and two buffers that iterations use alternately.

    Bodies are planned to read ``now`` and write ``following``. After the last iteration the value is in ``now``.
    """

    initial: TensorView
    now: TensorView
    following: TensorView


@dataclass(frozen=True)
class Scan:
    """A scan output of a loop: each iteration copies ``row``, from the body, into ``whole``, from its end if
    ``backwards``."""

    row: TensorView
    whole: TensorView
    backwards: bool


@dataclass(frozen=True)
class Repetition:
    """A loop: the body runs ``trips`` (one int64) times, or until ``condition`` (one bool) is false.

    Attributes:
        carried: loop-carried values.
        going: number of the carried value that is the condition; None if the condition does not change.
        scans: scan outputs, with a row for each iteration.
        most: maximum trip count. ``too_long`` returns the error if ``trips`` is larger and the condition does not end
            the loop.
        place: returns the prefix of errors in an iteration, by its number.
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
    """A branch or loop whose bodies run on the same device as the plan; the host reads the condition and the trip
    count.

    ``inputs`` and ``outputs`` are all views that ``control`` names; only ``outputs`` are results.
    """

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


PlannedStep = Step | FallbackStep | ControlStep


@dataclass(frozen=True)
class Jump:
    """A conditional jump between steps, for loops and branches whose kernels are steps of the plan itself.

    Attributes:
        by: number of a step whose first argument points to an int64.
        at, to: before step ``at`` the run continues with step ``to`` if the int64 is 0, or if it is not, as ``where``
            says. A backward jump closes a loop. A forward jump skips a loop's body or a branch.
        place: for a forward jump, the prefix of errors in the skipped steps. For a branch it is a text; for a loop, the
            texts before and after the iteration's number, to which the second argument of step ``by`` points.
    """

    by: int
    at: int
    to: int
    where: bool
    place: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParameterSpec:
    """An input: a C-contiguous array of this dtype and shape. Without lens it is one element, of any rank."""

    name: str
    dtype: str
    lens: tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """An output: a C-contiguous array; ``lens`` is None if only a fallback step's result determines the shape."""

    dtype: str
    lens: tuple[int, ...] | None


@dataclass(frozen=True)
class Use:
    """A buffer of the arena: ``bytes`` from ``offset`` on, and the first and last step (from 0) that need it."""

    offset: int
    bytes: int
    first: int
    last: int


@dataclass
class Plan:
    """Steps with everything that they refer to.

    Attributes:
        arena_bytes: size of the arena, which is 64-byte aligned.
        constants: C-contiguous arrays, neither copied nor written.
        parallel: False: the caller's thread runs everything; None: the executor decides.
        uses: buffers of the arena, for reports.
        symbols: symbols of a symbolic plan, in the order of their first appearance in the parameters' lens. Each is the
            whole length of some parameter's axis.
        condition: 1 for the lengths that the plan serves, within the ranges of the symbols.
        sizes: for a plan from a file, the size program whose values its lengths are; else None.
        jumps: jumps between steps; several jumps at one step are tested in their order.
        updates: pairs of an output and a parameter that may be the same memory: the plan then updates it in place.
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
    updates: tuple[tuple[int, int], ...] = ()
    sizes: SizeProgram | None = None

    def size_program(self) -> SizeProgram:
        """Return the size program of a plan from a file, or a new one for the symbols."""
        return SizeProgram(self.symbols) if self.sizes is None else self.sizes

    def symbol_axes(self) -> list[tuple[int, int]]:
        """Return, for each symbol, the number of the parameter and the axis whose length the symbol is.

        Raises:
            CompileError: no parameter has an axis of such a length.
        """
        axes: dict[Length, tuple[int, int]] = {}
        for number, parameter in enumerate(self.parameters):
            for axis, length in enumerate(parameter.lens):
                axes.setdefault(length, (number, axis))
        missing = [str(symbol) for symbol in self.symbols if symbol not in axes]
        if missing:
            raise CompileError(f"the length {missing[0]} is that of no parameter's axis, so that no run can tell it")
        return [axes[symbol] for symbol in self.symbols]

    def all_steps(self) -> Iterator[PlannedStep]:
        """Yield all steps, each before the steps of plans that it runs."""
        for step in self.steps:
            yield step
            for plan in () if isinstance(step, Step) else step.plans:
                yield from plan.all_steps()

    def kernels(self) -> list[KernelSource]:
        """Return the distinct kernels of the plan, in order of first use.

        These include kernels that other kernels call, and kernels that plans made by fallback steps may need.
        """
        found: dict[KernelSource, None] = {}
        for step in self.all_steps():
            if isinstance(step, Step):
                found[step.kernel] = None
                found.update([(arg, None) for arg in step.args if type(arg) is KernelSource])
            elif isinstance(step, FallbackStep):
                found.update(dict.fromkeys(step.kernels))
        return list(found)
