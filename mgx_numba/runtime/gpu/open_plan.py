"""A symbolic plan on an engine: its numbers for the lengths of a call, as arrays from which kernels are launched.

One size program has all numbers that kernels need. For a set of lengths it is evaluated natively once; the values go
into argument blocks, grids and descriptions for the copy engine by a few operations on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.launch import MOST_PLANES, Grid, TensorLayout, TensorMap
from ...core.device_array import DeviceArray
from ...core.dim import Dim, Length
from ...core.types import from_numpy, numpy_dtype
from ...dataclass import dataclass
from ...errors import CompileError, DeviceError, MgxError, ShapeError
from ..plan import MappedTensor, Plan, Pointer, Region, Step, TensorSpec
from ..size_program import INVALID, SizeProgram

if TYPE_CHECKING:
    from ..host.sizes import Evaluator

__all__ = ["Bound", "LaunchNumbers", "OpenLengths", "PlanLaunches", "Shapes", "lens_of"]

Shapes = tuple[tuple[int, ...], ...]
Place = tuple[Region, int]
_NOWHERE = 0
"""The base of numbers that are no addresses."""
_ARENA = (Region.ARENA, 0)
MOST_BYTES = 1 << 48
"""No device has so many bytes of memory: CUDA's virtual addresses have 47 bits (CUDA C++ programming guide)."""


def lens_of(value: Any) -> tuple[int, ...]:
    """Return the lengths of an input on the host or on a device."""
    return value.shape.array_lens if isinstance(value, DeviceArray) else value.shape


@dataclass(frozen=True)
class Bound:
    """The numbers of a plan for one set of lengths.

    Attributes:
        given: the symbols' values.
        values: of the size program, by number.
        parameter_lens, output_lens: of all parameters and outputs; None of an output whose lengths a host step tells.
        arena_bytes: the size of the arena.
    """

    given: tuple[int, ...]
    values: np.ndarray
    parameter_lens: tuple[tuple[int, ...], ...]
    output_lens: tuple[tuple[int, ...] | None, ...]
    arena_bytes: int


class OpenLengths:
    """The lengths of a symbolic plan: its symbols, and the numbers that follow from them.

    Attributes:
        program: the size program; whoever has more numbers evaluated adds them before the first call of `bound`.
    """

    def __init__(self, plan: Plan) -> None:
        """Note the numbers of parameters and outputs.

        Raises:
            CompileError: a symbol is no parameter's length.
        """
        self.plan = plan
        self.program = program = SizeProgram(plan.symbols)
        self._sources = [_source(plan, symbol) for symbol in plan.symbols]
        self._condition = program.number(plan.condition)
        self._parameters = [[program.number(n) for n in p.lens] for p in plan.parameters]
        self._outputs = [None if o.lens is None else [program.number(n) for n in o.lens] for o in plan.outputs]
        self._arena = program.number(plan.arena_bytes)
        self._evaluator: Evaluator | None = None
        self._last: tuple[Shapes, Bound | None] | None = None

    def values(self, shapes: Shapes) -> dict[Dim, int] | None:
        """Return the symbols' values for which the parameters have these shapes; None if there are none."""
        given = self._given(shapes)
        if given is None:
            return None
        values = self._evaluated(given)
        if any(p and list(s) != values[p].tolist() for p, s in zip(self._parameters, shapes)):
            return None
        return dict(zip(self.plan.symbols, given))

    def bound(self, shapes: Shapes) -> Bound | None:
        """Return the numbers for inputs of these shapes; None if the plan does not serve them."""
        last = self._last
        if last is None or last[0] != shapes:
            self._last = last = shapes, self._bound(shapes)
        return last[1]

    def expected(self, shapes: Shapes) -> Bound:
        """As `bound`.

        Raises:
            ShapeError: the plan does not serve the lengths.
            MgxError: the lengths need more bytes than there can be.
        """
        found = self.bound(shapes)
        if found is None:
            named = ", ".join(f"{p.name} {s}" for p, s in zip(self.plan.parameters, shapes))
            raise ShapeError(f"run: the plan does not serve the lengths of {named}")
        sizes = [found.arena_bytes, *(prod(lens or ()) for lens in found.output_lens)]
        if any(not 0 <= size < MOST_BYTES for size in sizes):
            raise self.too_large(found)
        return found

    def too_large(self, bound: Bound) -> MgxError:
        """Return the error of lengths whose numbers no device has room for."""
        pairs = ", ".join(f"{symbol}={value}" for symbol, value in zip(self.plan.symbols, bound.given))
        return MgxError(f"run: for the lengths {pairs} sizes exceed the bytes that a device can have")

    def load(self) -> None:
        """Have what evaluates the program there; no number can be added any more."""
        if self._evaluator is None:
            from ..host.sizes import Evaluator  # late: a plan from a file needs nothing that compiles

            self._evaluator = Evaluator(self.program)

    def _given(self, shapes: Shapes) -> tuple[int, ...] | None:
        parameters = self.plan.parameters
        if any(p.lens and len(s) != len(p.lens) for p, s in zip(parameters, shapes, strict=True)):
            return None
        return tuple([shapes[k][axis] for k, axis in self._sources])

    def _evaluated(self, given: Sequence[int]) -> np.ndarray:
        self.load()
        assert self._evaluator is not None
        return self._evaluator.values(given)

    def _bound(self, shapes: Shapes) -> Bound | None:
        given = self._given(shapes)
        if given is None or not all(_within(s, n) for s, n in zip(self.plan.symbols, given)):
            return None
        values = self._evaluated(given)
        if values[self._condition] in (0, INVALID):
            return None
        lens = tuple([tuple(values[p].tolist()) if p else () for p in self._parameters])
        if any(own and own != s for own, s in zip(lens, shapes)):
            return None
        made = tuple([None if o is None else tuple(values[o].tolist()) if o else () for o in self._outputs])
        return Bound(given, values, lens, made, int(values[self._arena]))


class LaunchNumbers:
    """Where the numbers of all kernels of a plan go; the same for all contexts.

    Attributes:
        bases: the places of memory that addresses count from, by their number; number 0 is for no address.
        functions: what the engine has loaded for each kernel.
        geometries: their grids; ``blocks`` has the numbers of these, [kernels, 3].
        slots: a template of all argument blocks, and ``starts`` where each begins, and the end.
        maps: tensors for the copy engine that follow from lengths or addresses.
        map_ends: how many of the maps the kernels up to each one have.
    """

    def __init__(
        self, plan: Plan, lengths: OpenLengths, functions: Callable[[Step], Any], address: Callable[[Pointer], int]
    ) -> None:
        """Note all numbers.

        Args:
            plan: the symbolic plan.
            lengths: takes the numbers.
            functions: gives what is loaded of a step's kernel.
            address: of a constant.
        """
        number = lengths.program.number
        self._too_large = lengths.too_large
        self._address = address
        self.bases: dict[Place, int] = {}
        self.steps = [step for step in plan.steps if isinstance(step, Step)]
        self.functions = [functions(step) for step in self.steps]
        self.geometries: list[Grid] = []
        slots: list[int] = []
        self.starts: list[int] = []
        blocks, writes = [], []
        self.maps: list[MapNumbers] = []
        self.map_ends: list[int] = []
        for step in self.steps:
            if not isinstance(step.geometry, Grid):
                raise CompileError(f"{step.label}: a symbolic plan has no calls of libraries")
            self.geometries.append(step.geometry)
            blocks.append([number(n) for n in step.geometry.blocks])
            self.starts.append(len(slots))
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
            self.map_ends.append(len(self.maps))
            slots += [0] * (len(step.args) == 0)
        self.starts.append(len(slots))
        self.slots = np.array(slots, np.int64)
        self.blocks = np.array(blocks, np.int64).reshape(-1, 3)
        table = np.array(writes, np.int64).reshape(-1, 3)
        self._places, self._numbers, self._bases = (np.ascontiguousarray(column) for column in table.T)
        self._owner = np.searchsorted(self.starts, self._places, side="right") - 1
        rows = [[m.number, m.base, *m.lens, *m.strides] for m in self.maps]
        self._map_numbers = np.array(rows, np.int64).reshape(-1, 10)
        self._sizes = np.array([m.itemsize for m in self.maps], np.int64)[:, None]

    def _based(self, place: Pointer, number: Callable[[Length], int]) -> tuple[int, int]:
        """Return the numbers of an offset and of what it counts from; constants are where they are."""
        if place.region is Region.CONSTANT:
            return number(self._address(place._replace(offset=0)) + place.offset), _NOWHERE
        key = (place.region, place.index)
        return number(place.offset), self.bases.setdefault(key, len(self.bases) + 1)

    def grids(self, bound: Bound) -> np.ndarray:
        """Return the blocks of all kernels for some lengths, [kernels, 3]; kernels without blocks do not run.

        Raises:
            MgxError: a number is too large.
        """
        blocks = bound.values[self.blocks]
        runs = (blocks > 0).all(1)
        if (blocks == INVALID).any() or (blocks[:, 0] >= 1 << 31).any():
            raise self._too_large(bound)
        if (blocks[runs, 1:] > MOST_PLANES).any():
            raise DeviceError(f"a launch of {blocks[runs].max(0).tolist()} blocks; axes 1 and 2 can have {MOST_PLANES}")
        blocks[~runs] = 0
        return blocks

    def write(self, bound: Bound, blocks: np.ndarray, bases: np.ndarray, slots: np.ndarray) -> None:
        """Write numbers and addresses into argument blocks.

        Raises:
            MgxError: a number that a kernel needs is too large.
        """
        values = bound.values[self._numbers]
        if (values == INVALID).any() and ((values == INVALID) & (blocks[self._owner, 0] > 0)).any():
            raise self._too_large(bound)
        slots[self._places] = values + bases[self._bases]

    def described(self, bound: Bound, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the address of each tensor for the copy engine, its lengths, and its strides in bytes."""
        numbers = self._map_numbers
        values = bound.values[numbers]
        return values[:, 0] + bases[numbers[:, 1]], values[:, 2:6], values[:, 6:] * self._sizes


class MapNumbers:
    """The numbers of one `MappedTensor`: ``slot`` is where its description goes."""

    def __init__(
        self, slot: int, layout: TensorLayout, number_of: Callable[[Length], int], number: int, base: int
    ) -> None:
        """``number`` and ``base`` are those of its address."""
        self.slot, self.layout, self.number, self.base = slot, layout, number, base
        self.lens = [number_of(n) for n in layout.lens]
        self.strides = [number_of(n) for n in layout.strides]
        self.itemsize = from_numpy(numpy_dtype(layout.dtype)).size


class PlanLaunches:
    """The kernels of a plan for one context: their argument blocks and grids, for the lengths that it is bound to.

    Attributes:
        slots: the argument blocks, of which ``words`` are the single ones.
        blocks: grids, [kernels, 3].
        bases: addresses of the places of `LaunchNumbers.bases`.
    """

    def __init__(self, numbers: LaunchNumbers) -> None:
        self.numbers = numbers
        self.slots = numbers.slots.copy()
        self.words = [self.slots[a:b] for a, b in zip(numbers.starts, numbers.starts[1:])]
        self.bases = np.zeros(1 + len(numbers.bases), np.int64)
        self.blocks = np.zeros((len(numbers.steps), 3), np.int64)
        self.addresses = np.zeros(len(numbers.maps), np.int64)
        self.lens, self.strides = (np.zeros((len(numbers.maps), 4), np.int64) for _ in range(2))

    def settle(self, bound: Bound, address: Callable[[Pointer], int]) -> None:
        """Take the numbers of some lengths, and the addresses of all places.

        Raises:
            MgxError: a number is too large.
        """
        for (region, index), base in self.numbers.bases.items():
            self.bases[base] = address(Pointer(region, index))
        self.blocks[:] = self.numbers.grids(bound)
        self.numbers.write(bound, self.blocks, self.bases, self.slots)
        if self.numbers.maps:
            self.addresses[:], self.lens[:], self.strides[:] = self.numbers.described(bound, self.bases)

    def grid(self, kernel: int) -> Grid | None:
        """Return the geometry of a kernel; None if it does not run."""
        blocks = self.blocks[kernel].tolist()
        if not blocks[0]:
            return None
        planned = self.numbers.geometries[kernel]
        return Grid(tuple(blocks), planned.threads, planned.shared_bytes, planned.cooperative)

    def launch_each(self, engine: Any, queue: Any, begin: int, end: int) -> None:
        """Ask a queue for a range of kernels, one by one."""
        for kernel in range(begin, end):
            grid = self.grid(kernel)
            if grid is None:
                continue
            for k in range(self.numbers.map_ends[kernel - 1] if kernel else 0, self.numbers.map_ends[kernel]):
                self._describe(engine, k)
            queue.launch(self.numbers.functions[kernel], self.words[kernel], grid)

    def _describe(self, engine: Any, k: int) -> None:
        one = self.numbers.maps[k]
        layout, lens = one.layout, tuple(self.lens[k].tolist())
        strides = tuple((self.strides[k] // one.itemsize).tolist())
        numbered = TensorLayout(layout.dtype, lens, strides, layout.box, layout.windows)
        self.slots[one.slot : one.slot + TensorMap.WORDS] = engine.tensor_map(numbered, int(self.addresses[k]))


def _source(plan: Plan, symbol: Dim) -> tuple[int, int]:
    """Return the parameter and the axis whose length a symbol is."""
    for number, parameter in enumerate(plan.parameters):
        for axis, length in enumerate(parameter.lens):
            if isinstance(length, Dim) and length is symbol:
                return number, axis
    raise CompileError(f"the length {symbol} is that of no parameter's axis, so that no run can tell it")


def _within(symbol: Dim, value: int) -> bool:
    return (symbol.low or 0) <= value and (symbol.high is None or value <= symbol.high)


def specs_at(plan: Plan, bound: Bound) -> list[TensorSpec]:
    """Return the outputs of a plan with their lengths."""
    return [TensorSpec(spec.dtype, lens) for spec, lens in zip(plan.outputs, bound.output_lens)]
