"""Pointwise cluster kernels: every result of a scalar module for each element, several vectors per thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, any_of, ceil_div, equal, known_equal, known_in, maximum, select
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
from .transposed_pointwise import transposed_launch

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
