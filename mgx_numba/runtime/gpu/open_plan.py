"""A symbolic plan on an engine: its numbers for a call's lengths, as arrays from which kernels are launched.

One size program has all numbers that kernels need. It is evaluated natively, once for each set of lengths. Another
native loop (`runtime.host.driver_calls`) writes the values into argument blocks, and launches the kernels where the
driver allows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.launch import MOST_PLANES, Grid, TensorLayout, TensorMap
from ...core.dim import Dim, Length
from ...core.types import from_numpy, numpy_dtype
from ...dataclass import dataclass
from ...errors import CompileError, DeviceError, MgxError, ShapeError
from ..host.driver_calls import TOO_LARGE, TOO_MANY, Launched, LaunchLoop, TensorMapArguments, loops
from ..memory import address_of
from ..plan import MappedTensor, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec
from ..size_program import INVALID, SizeProgram

if TYPE_CHECKING:
    from ..host.sizes import Evaluator
    from .engine import Engine, Queue

USUAL_BATCHES = (1, 3, 8, 32)
"""Batch sizes for which contexts are prepared in advance, each with each of `USUAL_LENGTHS`."""
USUAL_LENGTHS = (1, 2, 3, 4, 7, 8, 13, 16, 20, 31, 32, 48, 64, 100, 128, 256, 300, 512)
"""Lengths for which contexts are prepared in advance, each with each of `USUAL_BATCHES`.

Of 240 pairs of a batch size up to 32 and a length up to 1000, an encoder runs 230, and a decoder 210, by the kernels of
one of the prepared contexts.
"""
Shapes = tuple[tuple[int, ...], ...]
Place = tuple[Region, int]
_NOWHERE = 0
"""The base of numbers that are no addresses."""
MOST_BYTES = 1 << 48
"""Upper bound of a device's memory in bytes: CUDA's virtual addresses have 47 bits (CUDA C++ programming guide)."""


@dataclass(frozen=True)
class BoundLengths:
    """The numbers of a plan for one set of lengths.

    Attributes:
        given: values of the symbols.
        memory: values of the size program; value 0 comes after the constants.
        parameter_lens, output_lens: lengths of all parameters and outputs; None for an output whose lengths a fallback
            step determines.
        parameter_bytes, output_bytes: sizes on the device; 0 for tensors that only the host holds.
        arena_bytes: size of the arena.
    """

    given: tuple[int, ...]
    memory: np.ndarray
    parameter_lens: tuple[tuple[int, ...], ...]
    output_lens: tuple[tuple[int, ...] | None, ...]
    parameter_bytes: list[int]
    output_bytes: list[int]
    arena_bytes: int


class OpenLengths:
    """The lengths of a symbolic plan: its symbols, and the numbers that follow from them.

    Attributes:
        program: the size program; further numbers have to be added before the first call of `bound`.
    """

    def __init__(self, plan: Plan) -> None:
        """Add the numbers of parameters and outputs to the size program.

        Raises:
            CompileError: a symbol is no parameter's length.
        """
        self.plan = plan
        self.program = program = plan.size_program()
        self._sources = plan.symbol_axes()
        self._condition = program.number(plan.condition)
        self._axes = [program.number(n) for p in plan.parameters for n in p.lens]
        self._axes += [program.number(n) for o in plan.outputs for n in o.lens or ()]
        self._axes += [_bytes(spec, program) for spec in plan.parameters]
        self._axes += [_bytes(spec, program) for spec in plan.outputs]
        self._axes.append(program.number(plan.arena_bytes))
        self._evaluator: Evaluator | None = None
        self._last: tuple[Shapes, BoundLengths | None] | None = None

    def usual(self) -> Iterator[BoundLengths]:
        """Yield the numbers for usual values of the symbols, as far as the plan serves them.

        The first symbol is taken for the batch size, the others for lengths. All lengths have one value of
        `USUAL_LENGTHS`; or only one length has it and the others are 1; or one length is 1 and the others have it, as
        in a decoding step over a cache.
        """
        symbols, found = self.plan.symbols, set[tuple[int, ...]]()
        count = max(1, len(symbols) - 1)
        chosen = [[*(k == own for k in range(count))] for own in range(count)]
        apart = [*chosen, *([not one for one in row] for row in chosen)]
        for length, batch, long in product(USUAL_LENGTHS, USUAL_BATCHES, [[True] * count, *apart]):
            lengths = [batch] * (len(symbols) - count) + [length if one else 1 for one in long]
            pairs = zip(lengths, symbols)
            given = tuple([min(max(n, s.low or 0), n if s.high is None else s.high) for n, s in pairs])
            if given in found:
                continue
            found.add(given)
            memory = self._evaluated(given)
            if memory[self.zero + self._condition] not in (0, INVALID):
                yield self._bound_to(given, memory)

    def values(self, shapes: Shapes) -> dict[Dim, int] | None:
        """Return the symbols' values for parameters of the given ``shapes``; None if the plan cannot have them."""
        given = self._given(shapes)
        if given is None or not self._fits(shapes, self._bound_to(given, self._evaluated(given)).parameter_lens):
            return None
        return dict(zip(self.plan.symbols, given))

    def bound(self, shapes: Shapes) -> BoundLengths | None:
        """Return the numbers for inputs of these shapes; None if the plan does not serve them."""
        last = self._last
        if last is None or last[0] != shapes:
            self._last = last = shapes, self._bound(shapes)
        return last[1]

    def expected(self, shapes: Shapes) -> BoundLengths:
        """Return the numbers for inputs of these shapes.

        Raises:
            ShapeError: the plan does not serve the lengths.
            MgxError: the lengths need more bytes than a device can have.
        """
        found = self.bound(shapes)
        if found is None:
            named = ", ".join(f"{p.name} {s}" for p, s in zip(self.plan.parameters, shapes))
            raise ShapeError(f"run: the plan does not serve the lengths of {named}")
        sizes = (found.arena_bytes, *found.parameter_bytes, *found.output_bytes)
        if min(sizes) < 0 or max(sizes) >= MOST_BYTES:
            raise self.too_large(found)
        return found

    def too_large(self, bound: BoundLengths) -> MgxError:
        """Return the error for lengths that need more memory than a device can have."""
        pairs = ", ".join(f"{symbol}={value}" for symbol, value in zip(self.plan.symbols, bound.given))
        return MgxError(f"run: for the lengths {pairs} sizes exceed the bytes that a device can have")

    def load(self) -> None:
        """Load the evaluator of the size program, to which no number can be added afterwards."""
        if self._evaluator is None:
            from ..host.sizes import Evaluator  # late: plans from files import no compiler

            self._evaluator = Evaluator(self.program)
            self.zero = len(self.program.constants)
            self._places = self.zero + np.array(self._axes, np.int64)

    def _given(self, shapes: Shapes) -> tuple[int, ...] | None:
        parameters = self.plan.parameters
        if any(p.lens and len(s) != len(p.lens) for p, s in zip(parameters, shapes, strict=True)):
            return None
        return tuple([shapes[k][axis] for k, axis in self._sources])

    def _evaluated(self, given: Sequence[int]) -> np.ndarray:
        self.load()
        assert self._evaluator is not None
        return self._evaluator.memory(given)

    def _bound_to(self, given: tuple[int, ...], memory: np.ndarray) -> BoundLengths:
        numbers = memory[self._places].tolist()
        at = 0
        parameters, outputs = [], []
        for parameter in self.plan.parameters:
            parameters.append(tuple(numbers[at : at + len(parameter.lens)]))
            at += len(parameter.lens)
        for output in self.plan.outputs:
            rank = len(output.lens or ())
            outputs.append(None if output.lens is None else tuple(numbers[at : at + rank]))
            at += rank
        into, out = numbers[at : at + len(parameters)], numbers[at + len(parameters) : -1]
        return BoundLengths(given, memory, tuple(parameters), tuple(outputs), into, out, numbers[-1])

    def _fits(self, shapes: Shapes, lens: Sequence[tuple[int, ...]]) -> bool:
        return all(not own or own == shape for own, shape in zip(lens, shapes))

    def _bound(self, shapes: Shapes) -> BoundLengths | None:
        given = self._given(shapes)
        if given is None or not all(_within(s, n) for s, n in zip(self.plan.symbols, given)):
            return None
        memory = self._evaluated(given)
        if memory[self.zero + self._condition] in (0, INVALID):
            return None
        bound = self._bound_to(given, memory)
        return bound if self._fits(shapes, bound.parameter_lens) else None


class LaunchNumbers:
    """The destinations of the numbers of all kernels of a plan; shared by all contexts.

    Attributes:
        zero: index of value 0 in `BoundLengths.memory`.
        bases: pointers whose addresses are added to offsets, by number; number 0 is no address.
        functions: handle of each kernel.
        geometries: grid of each kernel.
        slots: a template of all argument blocks; ``starts`` has the start of each, and the end.
        records, writes: tables of `Launched` and `Written`.
        maps: tensors for the copy engine.
    """

    def __init__(
        self, plan: Plan, lengths: OpenLengths, functions: Callable[[Step], Any], address: Callable[[Pointer], int]
    ) -> None:
        """Add all numbers of the kernels to the size program.

        Args:
            plan: the symbolic plan.
            lengths: the plan's lengths, with its size program.
            functions: returns the handle of a step's kernel.
            address: returns the address of a constant.
        """
        number = lengths.program.number
        self.too_large = lengths.too_large
        self._address = address
        self.bases: dict[Place, int] = {}
        self.steps = [step for step in plan.steps if isinstance(step, Step)]
        self.functions = [functions(step) for step in self.steps]
        self.geometries: list[Grid] = []
        self.starts: list[int] = []
        self.maps: list[MapNumbers] = []
        slots: list[int] = []
        writes: list[tuple[int, int, int]] = []
        self.records = np.zeros((len(self.steps), Launched.WORDS), np.int64)
        for record, step in zip(self.records, self.steps):
            if not isinstance(step.geometry, Grid):
                raise CompileError(f"{step.label}: a symbolic plan has no calls of libraries")
            self.geometries.append(step.geometry)
            self.starts.append(len(slots))
            record[Launched.X : Launched.Z + 1] = [number(n) for n in step.geometry.blocks]
            record[Launched.FIRST_WRITE], record[Launched.FIRST_MAP] = len(writes), len(self.maps)
            for arg in step.args:
                if isinstance(arg, Dim):
                    writes.append((len(slots), number(arg), _NOWHERE))
                elif isinstance(arg, MappedTensor):
                    self.maps.append(MapNumbers(len(slots), arg.layout, number, *self._based(arg.pointer, number)))
                elif isinstance(arg, Pointer):
                    writes.append((len(slots), *self._based(arg, number)))
                elif not isinstance(arg, int):
                    raise CompileError(f"{step.label}: a kernel of this target calls no other one")
                slots.append(arg if isinstance(arg, int) else 0)
            record[Launched.END_WRITE], record[Launched.END_MAP] = len(writes), len(self.maps)
            slots += [0] * (len(step.args) == 0)
        self.starts.append(len(slots))
        self.slots = np.array(slots, np.int64)
        self.writes = np.array(writes, np.int64).reshape(-1, 3)

    def load(self, lengths: OpenLengths) -> None:
        """Load the evaluator, once all numbers have been added."""
        lengths.load()
        self.zero = lengths.zero

    def _based(self, place: Pointer, number: Callable[[Length], int]) -> tuple[int, int]:
        """Return the number of a pointer's offset, and its base; a constant's address is the offset itself."""
        if place.region is Region.CONSTANT:
            return number(self._address(place._replace(offset=0)) + place.offset), _NOWHERE
        key = (place.region, place.index)
        return number(place.offset), self.bases.setdefault(key, len(self.bases) + 1)


class MapNumbers:
    """Indices of the size-program numbers that a `MappedTensor` needs; ``slot`` receives its tensor map."""

    def __init__(
        self, slot: int, layout: TensorLayout, number_of: Callable[[Length], int], number: int, base: int
    ) -> None:
        """Record the layout's numbers; ``number`` and ``base`` give the tensor's address."""
        self.slot, self.layout, self.number, self.base = slot, layout, number, base
        self.lens = [number_of(n) for n in layout.lens]
        self.strides = [number_of(n) for n in layout.strides]
        self.itemsize = from_numpy(numpy_dtype(layout.dtype)).size


class PlanLaunches:
    """The kernels of a plan for one context: argument blocks and grids, for the lengths to which it is bound.

    Attributes:
        slots: all argument blocks; ``words`` has each block.
        block, records, maps: blocks that `runtime.host.driver_calls` reads and writes.
        settled: the lengths and addresses to which `settle` has set the numbers.
    """

    def __init__(self, numbers: LaunchNumbers) -> None:
        self.numbers = numbers
        self.slots = numbers.slots.copy()
        self.words = [self.slots[a:b] for a, b in zip(numbers.starts, numbers.starts[1:])]
        self._bases = np.zeros(1 + len(numbers.bases), np.int64)
        self._bound: BoundLengths | None = None
        self.records = numbers.records.copy()
        self._lens = np.zeros((len(numbers.maps), 4), np.int64)
        self._strides = np.zeros((len(numbers.maps), 3), np.int64)
        self.maps = np.zeros((len(numbers.maps), TensorMapArguments.WORDS), np.int64)
        for k, (row, one) in enumerate(zip(self.maps, numbers.maps)):
            row[: TensorMapArguments.ITEMSIZE + 1] = [one.number, one.base, *one.lens, *one.strides[1:], one.itemsize]
            row[TensorMapArguments.LENS] = address_of(self._lens) + 32 * k
            row[TensorMapArguments.STRIDES] = address_of(self._strides) + 24 * k
        self.block = block = np.zeros(LaunchLoop.WORDS, np.int64)
        block[LaunchLoop.BASES], block[LaunchLoop.SLOTS] = address_of(self._bases), address_of(self.slots)
        block[LaunchLoop.RECORDS], block[LaunchLoop.MAPS] = address_of(self.records), address_of(self.maps)
        block[LaunchLoop.WRITES] = address_of(numbers.writes)
        self.block_address = address_of(block)
        self.settled: tuple[tuple[int, ...], tuple[int, ...]] = (), ()

    def settle(self, bound: BoundLengths, addresses: Sequence[int]) -> None:
        """Set the numbers for a set of lengths, and the addresses of `LaunchNumbers.bases`; `write` stores them."""
        self._bases[1:] = addresses
        self._bound = bound
        self.settled = bound.given, tuple(addresses)
        self.block[LaunchLoop.VALUES] = address_of(bound.memory) + 8 * self.numbers.zero

    def write(self, begin: int, end: int) -> None:
        """Write the numbers of a range of kernels into their argument blocks and grids.

        Raises:
            DeviceError: a grid has too many blocks.
            MgxError: a number is too large.
        """
        assert self._bound is not None
        loops().write(self.block_address, begin, end)
        status = self.block[LaunchLoop.STATUS]
        if status == TOO_LARGE:
            raise self.numbers.too_large(self._bound)
        if status == TOO_MANY:
            blocks = self._blocks(int(self.block[LaunchLoop.FAILED]))
            raise DeviceError(f"a launch of {blocks} blocks; axes 1 and 2 can have {MOST_PLANES}")

    def launch_each(
        self, engine: Engine, queue: Queue, begin: int, end: int, skipped: Container[int] = frozenset()
    ) -> None:
        """Write the numbers and tensor maps of a range of kernels, and enqueue the kernels one by one.

        ``skipped`` has the ids of steps that are left out.
        """
        self.write(begin, end)
        for kernel in (begin + np.flatnonzero(self.records[begin:end, Launched.RUNS])).tolist():
            if id(self.numbers.steps[kernel]) in skipped:
                continue
            record = self.records[kernel]
            for k in range(record[Launched.FIRST_MAP], record[Launched.END_MAP]):
                self._describe(engine, k)
            queue.launch(self.numbers.functions[kernel], self.words[kernel], self.grid(kernel))

    def prepare(self, begin: int, end: int, queue: Queue) -> None:
        """Do nothing: `launch_each` needs nothing else."""

    def grid(self, kernel: int) -> Grid:
        """Return a kernel's current grid."""
        planned = self.numbers.geometries[kernel]
        return Grid(self._blocks(kernel), planned.threads, planned.shared_bytes, planned.cooperative)

    def _blocks(self, kernel: int) -> tuple[int, int, int]:
        x, y, z = self.records[kernel, Launched.GRID_X : Launched.GRID_Z + 1].tolist()
        return x, y, z

    def _describe(self, engine: Engine, k: int) -> None:
        one = self.numbers.maps[k]
        layout, lens = one.layout, tuple(self._lens[k].tolist())
        strides = (1, *(self._strides[k] // one.itemsize).tolist())
        numbered = TensorLayout(layout.dtype, lens, strides, layout.box, layout.windows)
        address = int(self.maps[k, TensorMapArguments.ADDRESS])
        self.slots[one.slot : one.slot + TensorMap.WORDS] = engine.tensor_map(numbered, address)


def _bytes(spec: ParameterSpec | TensorSpec, program: SizeProgram) -> int:
    """Return the number of a tensor's bytes on the device; these are 0 for a tensor that only the host holds."""
    dtype = numpy_dtype(spec.dtype)
    here = spec.lens is not None and not dtype.hasobject
    return program.product(spec.lens or () if here else (0,), dtype.itemsize)


def _within(symbol: Dim, value: int) -> bool:
    return (symbol.low or 0) <= value and (symbol.high is None or value <= symbol.high)
