"""Pointwise cluster kernels: every result of a scalar module for each element, several vectors per thread; tiles of
transposed operands are transposed in registers or shared memory.


Reading a transposed operand along the results' innermost axis would load a cache line per element. It is read along its
own contiguous axis instead. Where rows and columns are whole vectors, each thread reads a square of vectors and
transposes it in registers. Otherwise a tile is staged in shared memory and read across, four bytes at a time for
smaller elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....core.dim import (
    Length,
    any_of,
    ceil_div,
    common_divisor,
    equal,
    known_equal,
    known_in,
    known_less,
    maximum,
    select,
)
from ....dataclass import dataclass
from ....graph.module import Module
from ...arguments import Arguments
from ...body import cluster_name, evaluate_scalar_module, scalar_flops
from ...launch import Launch
from ...printer import CodeBuffer, VectorValue
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..kernel import gpu_launch
from ..printer import ThreadPrinter, dtype_name, most_lanes
from .flat_index import Axes, contiguous_lanes

THREADS = 256
"""Threads per block: eight blocks fill a multiprocessor of 2048 threads. No figures kept."""
LIGHT, HEAVY = 12, 32
"""Most instructions of a module for four vectors per thread, and for two."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a cluster, their names, and its iteration space."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    space: Space

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return inputs, then outputs, in the order of the space's strides."""
        return (*self.inputs, *self.outputs)


def operand_names(inputs: int, outputs: int) -> list[str]:
    """Return the operands' names in launches."""
    return [f"x{k}" for k in range(inputs)] + [f"out{k}" for k in range(outputs)]


def pointwise_launch(
    module: Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor], fast_math: bool = False, origin: str = ""
) -> Launch:
    """Return the launch that evaluates ``module`` (scalar parameters in order of declaration) over tensors of equal
    lengths and any strides; operands are named by `operand_names`.

    The kernel text depends on the module, the element types, the merged rank, which strides are 0 or 1, and the vector
    width.

    Raises:
        UnsupportedError: the kernel language lacks an operation for its element type.
    """
    space = collapse(outputs[0].lens, [t.strides for t in (*inputs, *outputs)], order_by=len(inputs))
    if not space.rank:
        space = Space((1,), tuple((0,) * 1 for _ in space.strides))
    operands = Operands(tuple(inputs), tuple(outputs), space)
    elements = prod(outputs[0].lens)
    names = operand_names(len(inputs), len(outputs))
    if not known_equal(elements, 0):
        transposed = transposed_launch(module, inputs, outputs, space, names, fast_math, origin)
        if transposed is not None:
            return transposed
    printer = _PointwiseText(module, operands, fast_math)
    name, lines = cluster_name(module, "pointwise"), printer.lines()
    moved, flops = sum(t.footprint for t in operands.tensors), scalar_flops(module) * elements
    blocks = blocks_unless_empty(printer.blocks, outputs)
    return gpu_launch(name, lines, printer.arguments, blocks, THREADS, moved, flops, origin)


def blocks_unless_empty(blocks: Length, outputs: Sequence[Tensor]) -> Length:
    """Return ``blocks``, or 0 if an output has no elements."""
    found: Length = select(any_of(*(equal(n, 0) for t in outputs for n in t.lens)), 0, blocks)
    return found


class _PointwiseText:
    """Kernel text of one cluster."""

    def __init__(self, module: Module, operands: Operands, fast_math: bool) -> None:
        self.module = module
        self.operands = operands
        self.fast_math = fast_math
        space = operands.space
        moving = [k for k, strides in enumerate(space.strides) if not all(known_in(s, 0) for s in strides)]
        size = max((operands.tensors[k].type.size for k in moving), default=1)
        aligned = [(space.strides[k], operands.tensors[k].offset) for k in moving]
        length = space.lens[-1]
        self.flat = space.rank == 1 and all(known_in(s, 0, 1) for (s,) in space.strides)
        rounded = most_lanes(size) if self.flat else length  # what is left is the tail
        self.lanes = contiguous_lanes(most_lanes(size), rounded, aligned) if moving else 1
        self.unrolled = 4 if len(module) <= LIGHT else 2 if len(module) <= HEAVY else 1
        self.tail = length % self.lanes
        self.arguments = Arguments()
        self.names = operand_names(len(operands.inputs), len(operands.outputs))
        for name, tensor in zip(self.names, operands.tensors):
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        items = prod(space.lens[:-1]) * (length // self.lanes)
        self.blocks = maximum(1, ceil_div(items, THREADS * self.unrolled))
        self.arguments.integer("items", items)
        if self.flat and self.lanes > 1:
            self.arguments.integer("tail", self.tail)
        lens = (*space.lens[:-1], length // self.lanes)
        self.axes = Axes(self.arguments, "", lens, space.strides, self.lanes)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        chunk = THREADS * self.unrolled
        buffer = CodeBuffer()
        buffer.line(*self.arguments.bind())
        buffer.line(f"first = block_index(0) * {chunk} + thread_index(0)")
        with buffer.block(f"if (block_index(0) + 1) * {chunk} <= items:"):
            self._print(buffer, ["first", *(f"first + {THREADS * k}" for k in range(1, self.unrolled))], self.lanes)
        with buffer.block("else:"):
            buffer.line("item = first")
            with buffer.block("while item < items:"):
                self._print(buffer, ["item"], self.lanes)
                buffer.line(f"item = item + {THREADS}")
        if self.flat and self.lanes > 1:
            with buffer.block("if (block_index(0) == 0) & (thread_index(0) < tail):"):
                buffer.line(f"last = items * {self.lanes} + first")
                self._print(buffer, ["last"], 1)
        return buffer.lines

    def _print(self, buffer: CodeBuffer, items: Sequence[str], lanes: int) -> None:
        """Emit the evaluation of vectors ``items``: all loads first."""
        printer = ThreadPrinter(buffer, lanes, self.fast_math)
        places = [self._places(buffer, buffer.emit(item) if "+" in item else item, lanes) for item in items]
        loaded = [
            [self._load(printer, k, place[k], lanes) for k in range(len(self.operands.inputs))] for place in places
        ]
        results = [evaluate_scalar_module(self.module, printer, values) for values in loaded]
        for place, values in zip(places, results):
            for k, value in enumerate(values, len(self.operands.inputs)):
                store = (
                    "store_aligned" if lanes > 1 and not known_in(self.operands.space.strides[k][-1], 0) else "store"
                )
                buffer.line(f"{store}(p_{self.names[k]}, {place[k]}, {printer.stored(value)})")

    def _places(self, buffer: CodeBuffer, item: str, lanes: int) -> list[str]:
        """Emit each operand's offset of vector ``item``."""
        if self.flat and lanes == 1:
            return ["0" if known_in(s, 0) else item for (s,) in self.operands.space.strides]
        indices = self.axes.split(buffer, item)
        offsets = [self.axes.offset(k, indices) for k in range(len(self.names))]
        return [buffer.emit(text) if " " in text else text for text in offsets]

    def _load(self, printer: ThreadPrinter, operand: int, place: str, lanes: int) -> VectorValue:
        name, last = self.names[operand], self.operands.space.strides[operand][-1]
        if known_in(last, 0):
            text = f"load_splat(p_{name}, {place}, {lanes})"
        else:
            text = f"{'load_aligned' if lanes > 1 else 'load'}(p_{name}, {place}, {lanes})"
        return printer.loaded(text, self.operands.tensors[operand].type)


TILE = 32
"""Rows and columns of a tile, in words per thread: a warp reads one row and writes one column."""
WORD = 4
"""Bytes that a thread moves at once if elements are smaller."""
ROWS = 8
"""Tile rows that a block's threads cover at once."""
LEAST = 16
"""Least length of both axes for tiles to gain."""
MOST_STAGED = 40 << 10
"""Most bytes of tiles in shared memory."""
LANES_ALONG, LANES_ACROSS = 4, 8
"""Lanes of a warp along the transposed operand, and along the results: both access whole 32-byte sectors."""
WARPS_ALONG, WARPS_ACROSS = 2, 4
"""Warps of a block along both. No figures kept."""
MOST_SQUARE = 8
"""Most rows of a thread's square of vectors: 32 registers of 16-bit elements."""
MOST_REPEATED = 32
"""Most instructions of a module that are repeated for each row of a square."""


def transposed_launch(
    module: Module,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    space: Space,
    names: Sequence[str],
    fast_math: bool,
    origin: str,
) -> Launch | None:
    """Return the launch of a cluster over ``space``, whose last axis is contiguous in the results. Return None if no
    operand is transposed, or operands are contiguous along different axes.

    Raises:
        UnsupportedError: the kernel language lacks an operation for its element type.
    """
    about = {_lies_along(s) for s in space.strides[: len(inputs)] if not known_in(s[-1], 0, 1)} - {None}
    if len(about) != 1:
        return None
    (other,) = about
    assert other is not None
    if any(known_less(space.lens[d], LEAST) for d in (other, -1)):  # tiles serve short lengths, too
        return None
    if not all(known_in(s[-1], 1) for s in space.strides[len(inputs) :]):
        return None
    strides = space.strides[: len(inputs)]
    transposed = [k for k, s in enumerate(strides) if known_in(s[other], 1) and not known_in(s[-1], 0, 1)]
    tensors = (*inputs, *outputs)
    square = min(MOST_SQUARE, most_lanes(max(t.type.size for t in tensors)))
    if square > 1 and len(module) <= MOST_REPEATED and _whole(tensors, space, other, transposed, square):
        squares = _SquaresText(module, tensors, len(inputs), space, names, other, transposed, square, fast_math)
        return squares.launch(origin)
    lanes = _lanes(tensors, space, other, transposed)
    side = TILE * lanes
    if sum(inputs[k].type.size for k in transposed) * side * (side + 1) > MOST_STAGED:
        return None
    return _TransposedText(module, tensors, len(inputs), space, names, other, transposed, lanes, fast_math).launch(
        origin
    )


def _lanes(tensors: Sequence[Tensor], space: Space, other: int, transposed: Sequence[int]) -> int:
    """Return the elements that a thread moves at once: a word, if all operands have whole words."""
    lanes = max(1, WORD // max(t.type.size for t in tensors))
    return lanes if _whole(tensors, space, other, transposed, lanes) else 1


def _whole(tensors: Sequence[Tensor], space: Space, other: int, transposed: Sequence[int], lanes: int) -> bool:
    """Return whether all operands have whole vectors of ``lanes`` elements along their contiguous axis."""
    last = space.rank - 1
    if not all(_is_whole(space.lens[d], lanes) for d in (other, last)):
        return False
    for k, (tensor, strides) in enumerate(zip(tensors, space.strides)):
        along = other if k in transposed else last
        apart = [s for d, s in enumerate(strides) if d != along]
        if known_in(strides[along], 0):
            continue
        if not known_in(strides[along], 1) or not all(_is_whole(n, lanes) for n in (tensor.offset, *apart)):
            return False
    return True


def _is_whole(length: Length, lanes: int) -> bool:
    """Return whether a length is a multiple of ``lanes`` for all values of its symbols."""
    return common_divisor(length) % lanes == 0


def _lies_along(strides: Sequence[Length]) -> int | None:
    """Return the contiguous axis of an operand."""
    return next((d for d, s in enumerate(strides) if known_in(s, 1)), None)


class _TransposedText:
    """Kernel text of one cluster; a block computes a tile of the last axis and the ``other`` one.

    Attributes:
        threads: threads per block.
        tile: elements per block along ``other`` and along the last axis.
    """

    threads = TILE * ROWS

    def __init__(
        self,
        module: Module,
        tensors: Sequence[Tensor],
        inputs: int,
        space: Space,
        names: Sequence[str],
        other: int,
        transposed: Sequence[int],
        lanes: int,
        fast_math: bool,
    ) -> None:
        self.module, self.tensors, self.inputs, self.names = module, tensors, inputs, names
        self.transposed, self.lanes, self.fast_math = transposed, lanes, fast_math
        self.tile = self._tile()
        self.splat = [known_in(s[-1], 0) for s in space.strides]
        self.arguments = Arguments()
        for name, tensor in zip(names, tensors):
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        last = space.rank - 1
        rest = [d for d in range(space.rank) if d not in (other, last)]
        high, wide = space.lens[other], space.lens[last]
        self.arguments.integer("high", high)
        self.arguments.integer("wide", wide)
        down, across = ceil_div(high, self.tile[0]), ceil_div(wide, self.tile[1])
        self.arguments.integer("down", down)
        self.arguments.integer("across", across)
        self.outer = Axes(
            self.arguments, "o", [space.lens[d] for d in rest], [[s[d] for d in rest] for s in space.strides]
        )
        self.inner = Axes(self.arguments, "i", (high, wide), [(s[other], s[last]) for s in space.strides])
        self.blocks = down * across * prod(space.lens[d] for d in rest)
        self.elements = prod(space.lens)

    def _tile(self) -> tuple[int, int]:
        return TILE * self.lanes, TILE * self.lanes

    def launch(self, origin: str) -> Launch:
        """Return the launch."""
        name, lines = cluster_name(self.module, "transpose"), self.lines()
        moved, flops = sum(t.footprint for t in self.tensors), scalar_flops(self.module) * self.elements
        return gpu_launch(name, lines, self.arguments, self.blocks, self.threads, moved, flops, origin)

    def _begin(self) -> CodeBuffer:
        """Emit the arguments, and the block's tile and plane in each operand."""
        buffer = CodeBuffer()
        buffer.line(
            *self.arguments.bind(),
            "number = idiv(block_index(0), across)",
            f"first_wide = (block_index(0) - number * across) * {self.tile[1]}",
            "plane = idiv(number, down)",
            f"first_high = (number - plane * down) * {self.tile[0]}",
        )
        places = self.outer.split(buffer, "plane") if self.outer.lens else []
        for k, name in enumerate(self.names):
            buffer.line(f"r_{name} = offset(p_{name}, {self.outer.offset(k, places)})")
        return buffer

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, lanes, side = self._begin(), self.lanes, self.tile[0]
        pitch = side + 1
        for k in self.transposed:
            dtype = dtype_name(self.tensors[k].type)
            buffer.line(f"tile_{self.names[k]} = shared_{dtype}({side * pitch})")
        buffer.line(f"lead = idiv(thread_index(0), {TILE})")
        buffer.line(f"side = (thread_index(0) - lead * {TILE}) * {lanes}")
        steps = range(0, side, ROWS)
        load = "load_aligned" if lanes > 1 else "load"
        buffer.line("own_high = first_high + side")
        for step in steps:
            at = buffer.emit(f"first_wide + lead + {step}")
            with buffer.block(f"if (own_high < high) & ({at} < wide):"):
                for k in self.transposed:
                    found = f"{load}(r_{self.names[k]}, {self.inner.offset(k, ['own_high', at])}, {lanes})"
                    buffer.line(f"store(tile_{self.names[k]}, (lead + {step}) * {pitch} + side, {found})")
        buffer.line("barrier()")
        buffer.line("own_wide = first_wide + side")
        for step in steps:
            at = buffer.emit(f"first_high + lead + {step}")
            with buffer.block(f"if (own_wide < wide) & ({at} < high):"):
                slots = [f"(side + {j}) * {pitch} + lead + {step}" for j in range(lanes)]
                tiles = {k: [f"load(tile_{self.names[k]}, {slot}, 1)" for slot in slots] for k in self.transposed}
                self._compute(buffer, at, {k: _joined(own) for k, own in tiles.items()})
        return buffer.lines

    def _compute(self, buffer: CodeBuffer, high: str, transposed: Mapping[int, str]) -> None:
        """Emit the module at a thread's elements from ``own_wide``, and the stores; ``transposed`` holds the vectors of
        transposed operands."""
        lanes = self.lanes
        aligned = "_aligned" if lanes > 1 else ""
        printer = ThreadPrinter(buffer, lanes, self.fast_math)
        values: list[VectorValue] = []
        for k in range(self.inputs):
            place = self.inner.offset(k, [high, "own_wide"])
            if k in transposed:
                text = transposed[k]
            elif self.splat[k]:
                text = f"load_splat(r_{self.names[k]}, {place}, {lanes})"
            else:
                text = f"load{aligned}(r_{self.names[k]}, {place}, {lanes})"
            values.append(printer.loaded(text, self.tensors[k].type))
        for k, value in enumerate(evaluate_scalar_module(self.module, printer, values), self.inputs):
            place = self.inner.offset(k, [high, "own_wide"])
            buffer.line(f"store{aligned}(r_{self.names[k]}, {place}, {printer.stored(value)})")


class _SquaresText(_TransposedText):
    """Kernel text of one cluster whose threads transpose squares of vectors in registers."""

    threads = 32 * WARPS_ALONG * WARPS_ACROSS

    def _tile(self) -> tuple[int, int]:
        return LANES_ALONG * WARPS_ALONG * self.lanes, LANES_ACROSS * WARPS_ACROSS * self.lanes

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, lanes = self._begin(), self.lanes
        buffer.line(
            "warp = idiv(thread_index(0), 32)",
            "lane = thread_index(0) - warp * 32",
            f"along = imod(warp, {WARPS_ALONG}) * {LANES_ALONG} + imod(lane, {LANES_ALONG})",
            f"aside = idiv(warp, {WARPS_ALONG}) * {LANES_ACROSS} + idiv(lane, {LANES_ALONG})",
            f"own_high = first_high + along * {lanes}",
            f"own_wide = first_wide + aside * {lanes}",
        )
        with buffer.block("if (own_high < high) & (own_wide < wide):"):
            found = {
                k: [
                    buffer.emit(f"load_aligned(r_{self.names[k]}, {self.inner.offset(k, ['own_high', at])}, {lanes})")
                    for at in ("own_wide", *(buffer.emit(f"own_wide + {i}") for i in range(1, lanes)))
                ]
                for k in self.transposed
            }
            for j in range(lanes):
                high = buffer.emit(f"own_high + {j}")
                rows = {k: [f"splat(extract({v}, {j}), 1)" for v in own] for k, own in found.items()}
                self._compute(buffer, high, {k: _joined(own) for k, own in rows.items()})
        return buffer.lines


def _joined(parts: Sequence[str]) -> str:
    """Return the concatenation of a power of two of vectors."""
    if len(parts) in (2, 4):
        return f"join{len(parts)}({', '.join(parts)})"
    half = len(parts) // 2
    return f"join2({_joined(parts[:half])}, {_joined(parts[half:])})" if half else parts[0]
