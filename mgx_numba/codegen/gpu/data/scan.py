"""Prefix sums (``prefix_scan_sum``): a block per row along the contiguous axis, a thread per row across it."""

from __future__ import annotations

from math import prod

from ....core.dim import all_of, ceil_div, less, less_equal, preferred
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer, VectorValue
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..architecture import WARP
from ..cluster.flat_index import Axes
from ..kernel import gpu_launch
from ..printer import ThreadPrinter, dtype_name

THREADS = 256
"""Threads per block. No figures kept."""
HELD = 4
"""Elements that a thread accumulates sequentially. No figures kept."""


def scan_launch(axis: int, exclusive: bool, reverse: bool, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of prefix sums along ``axis``; operands ``x`` and ``out``.

    ``exclusive`` omits the element itself, ``reverse`` sums from the end. 16-bit floats accumulate in float32, bools
    and integers in 64 bits.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    space = collapse(out.lens, [x.strides, out.strides], axes=kept)
    if not space.rank:
        space = Space((1,), ((0,), (0,)))
    text = _ScanText(axis, exclusive, reverse, x, out, space)
    rows = prod(space.lens)
    apart = less(abs(space.strides[0][-1]), abs(x.strides[axis]))
    columns = preferred(all_of(apart, less_equal(THREADS, rows)))
    if columns:
        text.columns()
        blocks = ceil_div(rows, THREADS)
    else:
        text.rows()
        blocks = rows
    lines, moved = text.buffer.lines, x.footprint + out.footprint
    return gpu_launch("scan_kernel", lines, text.arguments, blocks, THREADS, moved, prod(x.lens), origin)


class _ScanText:
    """Kernel text of one prefix sum."""

    def __init__(self, axis: int, exclusive: bool, reverse: bool, x: Tensor, out: Tensor, space: Space) -> None:
        self.exclusive, self.type, self.result = exclusive, x.type, out.type
        self.sums = _sums(x.type)
        self.arguments, self.buffer = Arguments(), CodeBuffer()
        self.printer = ThreadPrinter(self.buffer, 1)
        self.arguments.pointer("p_x", "x", dtype_name(x.type))
        self.arguments.pointer("p_out", "out", dtype_name(out.type))
        sign, start = (-1, x.lens[axis] - 1) if reverse else (1, 0)
        for name, tensor in (("x", x), ("out", out)):
            self.arguments.integer(f"step_{name}", sign * tensor.strides[axis])
            self.arguments.integer(f"start_{name}", start * tensor.strides[axis])
        self.arguments.integers(count=prod(space.lens), length=x.lens[axis])
        self.axes = Axes(self.arguments, "", space.lens, space.strides)
        self.buffer.line(*self.arguments.bind())

    def columns(self) -> None:
        """Emit one row per thread."""
        buffer = self.buffer
        buffer.line(f"row = block_index(0) * {THREADS} + thread_index(0)")
        with buffer.block("if row < count:"):
            self._row()
            buffer.line(f"total = {self._zero()}")
            with buffer.block("for j in range(length):"):
                own = self._element("j")
                following = f"add(total, {own})"
                if self.exclusive:
                    self._store("j", "total")
                    buffer.line(f"total = {following}")
                else:
                    buffer.line(f"total = {following}")
                    self._store("j", "total")

    def rows(self) -> None:
        """Emit one row per block: threads sum their own elements, then the sums of preceding threads are added."""
        buffer, dtype = self.buffer, dtype_name(self.sums)
        warps = THREADS // WARP
        buffer.line("row = block_index(0)")
        self._row()
        buffer.line(f"carried = {self._zero()}")
        buffer.line(f"totals = shared_{dtype}({warps})")
        buffer.line(f"lane = imod(thread_index(0), {WARP})")
        buffer.line(f"warp = idiv(thread_index(0), {WARP})")
        with buffer.block(f"for start in range(0, length, {THREADS * HELD}):"):
            buffer.line(f"first = start + thread_index(0) * {HELD}")
            buffer.line(f"own = {self._zero()}")
            for k in range(HELD):
                buffer.line(f"part{k} = own")
                with buffer.block(f"if first + {k} < length:"):
                    buffer.line(f"own = add(own, {self._element(f'(first + {k})')})")
                if not self.exclusive:
                    buffer.line(f"part{k} = own")
            # Joined pairwise: of twice as many threads each time, those of the upper half add what the lower one has.
            buffer.line(f"before = {self._zero()}")
            buffer.line("total = own")
            distance = 1
            while distance < WARP:
                buffer.line(f"other = shuffle_xor(total, {distance})")
                with buffer.block(f"if imod(idiv(lane, {distance}), 2) == 1:"):
                    buffer.line("before = add(other, before)")
                    buffer.line("total = add(other, total)")
                with buffer.block("else:"):
                    buffer.line("total = add(total, other)")
                distance *= 2
            buffer.line("barrier()")
            with buffer.block("if lane == 0:"):
                buffer.line("store(totals, warp, total)")
            buffer.line("barrier()")
            with buffer.block("for k in range(warp):"):
                buffer.line("carried = add(carried, load(totals, k, 1))")
            buffer.line("start_sum = add(carried, before)")
            for k in range(HELD):
                with buffer.block(f"if first + {k} < length:"):
                    self._store(f"(first + {k})", f"add(start_sum, part{k})")
            with buffer.block(f"for k in range(warp, {warps}):"):
                buffer.line("carried = add(carried, load(totals, k, 1))")

    def _row(self) -> None:
        places = self.axes.split(self.buffer, "row")
        for k, name in enumerate(("x", "out")):
            self.buffer.line(f"r_{name} = offset(p_{name}, {self.axes.offset(k, places)} + start_{name})")

    def _zero(self) -> str:
        """Return the sum of no elements: -0, which keeps the sign of an element -0; 0 if the sum itself is stored."""
        zero = 0 if self.exclusive or not self.sums.is_floating else -0.0
        return f"const_{dtype_name(self.sums)}({zero}, 1)"

    def _element(self, index: str) -> str:
        value = self.printer.loaded(f"load(r_x, {index} * step_x, 1)", self.type)
        return self.printer.stored(value, self.sums)

    def _store(self, index: str, total: str) -> None:
        value = VectorValue(self.buffer.emit(total) if "(" in total else total, self.sums)
        self.buffer.line(f"store(r_out, {index} * step_out, {self.printer.stored(value, self.result)})")


def _sums(type: Type) -> Type:
    """Return the accumulator type."""
    if type.is_floating:
        return type.compute
    return Type.int64_type if type.is_signed else Type.uint64_type
