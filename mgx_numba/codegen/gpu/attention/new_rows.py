"""Operations around attention in a decode step, computed by the attention kernel itself.

Each sequence has one query. A block computes its query rows, such as the rotary embedding of a projection, in shared
memory. The block whose keys include the new key first writes the new rows of both caches.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dim import Length
from ....dataclass import dataclass
from ....graph.module import Module
from ...arguments import Arguments
from ...body import evaluate_scalar_module
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ..architecture import WARP
from ..cluster.flat_index import contiguous_lanes
from ..printer import ThreadPrinter, dtype_name, most_lanes


@dataclass(frozen=True)
class RowPart:
    """Features of rows [batch, heads, 1, features], from feature ``first`` on: the result of a module of scalar
    operations over ``inputs`` of the same lengths, or without a module a copy of the only input."""

    module: Module | None
    inputs: tuple[Tensor, ...]
    first: int
    fast_math: bool = False

    @property
    def count(self) -> int:
        """Return the number of features."""
        return int(self.inputs[0].lens[3])

    @property
    def lanes(self) -> int:
        """Return the elements of a vector that is aligned in all inputs and in rows aligned to 16 bytes."""
        size = max(t.type.size for t in self.inputs)
        apart: list[tuple[tuple[Length, ...], Length]] = [
            ((t.strides[0], t.strides[1], t.strides[3]), t.offset) for t in self.inputs
        ]
        return contiguous_lanes(most_lanes(size), self.count, [*apart, ((1,), self.first)])


@dataclass(frozen=True)
class NewRows:
    """The parts of the queries (none: they are read from memory), and of the new rows of keys and of values. The int64
    operand ``places`` [batch, 1] has the index of the rows in the caches, or -1.

    Attributes:
        place_stride: elements between the places of two batches.
    """

    queries: tuple[RowPart, ...]
    keys: tuple[RowPart, ...]
    values: tuple[RowPart, ...]
    place_stride: int

    def declare(self, arguments: Arguments) -> None:
        """Declare the operands: ``q0x1`` is input 1 of part 0 of the queries."""
        arguments.pointer("p_places", "places", "int64")
        arguments.integers(place_stride=self.place_stride)
        for kind, parts in (("q", self.queries), ("k", self.keys), ("v", self.values)):
            for n, part in enumerate(parts):
                for x, tensor in enumerate(part.inputs):
                    name = f"{kind}{n}x{x}"
                    arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
                    arguments.integer(f"{name}_b", tensor.strides[0])
                    arguments.integer(f"{name}_h", tensor.strides[1])
                    arguments.step(f"{name}_d", tensor.strides[3])

    def print_queries(self, buffer: CodeBuffer, rows: int, threads: int, pitch: int) -> None:
        """Emit the stores of ``rows`` query heads of a block to ``q``, ``pitch`` elements apart."""
        turn = _Turn(threads)
        for n, part in enumerate(self.queries):
            _print_part(buffer, f"q{n}", part, rows, turn, f"head * {rows} + row", "q", f"row * {pitch}")

    def print_rows(self, buffer: CodeBuffer, threads: int) -> None:
        """Emit the stores of the new row in a block's ``k`` and ``v``; ``place`` is its index."""
        turn = _Turn(threads, self.queries)
        for kind, parts in (("k", self.keys), ("v", self.values)):
            for n, part in enumerate(parts):
                _print_part(buffer, f"{kind}{n}", part, 1, turn, "shared_head", kind, f"place * {kind}_s")


class _Turn:
    """Assign parts to warps in turn, so that warps load different parts and their memory latencies overlap."""

    def __init__(self, threads: int, before: tuple[RowPart, ...] = ()) -> None:
        self.threads, self._first = threads, WARP * len(before)

    def next(self, items: int) -> str:
        """Return the index of a thread's first item of the next ``items``."""
        shift = -self._first % self.threads
        self._first += -(-items // WARP) * WARP
        return f"imod(thread + {shift}, {self.threads})" if shift else "thread"


def _print_part(
    buffer: CodeBuffer, name: str, part: RowPart, rows: int, turn: _Turn, head: str, to: str, at: str
) -> None:
    """Emit the stores of a part of ``rows`` rows at index ``at`` of ``to``."""
    lanes = part.lanes
    vectors = part.count // lanes
    aligned: Callable[[str], str] = lambda verb: f"{verb}_aligned" if lanes > 1 else verb  # noqa: E731
    with buffer.block(f"for item in range({turn.next(rows * vectors)}, {rows * vectors}, {turn.threads}):"):
        buffer.line(f"row = idiv32(item, {vectors})", f"along = (item - row * {vectors}) * {lanes}")
        printer = ThreadPrinter(buffer, lanes, part.fast_math)
        loads = []
        for x, tensor in enumerate(part.inputs):
            own, step = f"{name}x{x}", tensor.strides[3]
            base = f"batch * {own}_b + ({head}) * {own}_h"
            if isinstance(step, int) and step in (0, 1):
                place = f"{base}{' + along' * step}"
            else:
                place = f"{base} + along * {own}_d"
            verb = "load_splat" if isinstance(step, int) and step == 0 else aligned("load")
            loads.append((f"{verb}(p_{own}, {place}, {lanes})", tensor.type))
        if part.module is None:
            value = loads[0][0]
        else:
            given = [printer.loaded(text, type) for text, type in loads]
            value = printer.stored(evaluate_scalar_module(part.module, printer, given)[0])
        buffer.line(f"{aligned('store')}({to}, {at} + {part.first} + along, {value})")
