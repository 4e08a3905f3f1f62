"""Arg-reductions (``argmax``, ``argmin``): one team of threads per row."""

from __future__ import annotations

from math import prod

from ....core.dim import Dim, ceil_div, known_in, less_equal, preferred
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..architecture import WARP
from ..cluster.flat_index import Axes
from ..kernel import gpu_launch
from ..printer import dtype_name
from .topk import Order, join_first

THREADS = 256
"""Threads per block. No figures kept."""
HELD = 4
"""Least elements of a row per thread of its team, and rows per device thread below which rows across lanes still use
teams of several threads: fewer sequential loads, fewer exchanges. No figures kept."""
DEVICE_THREADS = 1 << 17
"""Threads that occupy a device: half of what an H100 holds (132 multiprocessors of 2048)."""


def argreduce_launch(greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes the int64 position of each row's first, or ``last``, extreme element along
    ``axis``.

    Operands: ``x`` and ``out``, whose length along the axis is 1. A NaN is the extreme of its row.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    space = collapse(out.lens, [x.strides, out.strides], axes=kept)
    if not space.rank:
        space = Space((1,), ((0,), (0,)))
    length, rows = x.lens[axis], prod(space.lens)
    across = not known_in(x.strides[axis], 1) and preferred(less_equal(DEVICE_THREADS, rows * HELD))
    size = 1
    while not across and size < THREADS and (size < WARP if isinstance(length, Dim) else size * HELD < length):
        size *= 2
    order = Order(x.type, greatest, nan_first=True)
    arguments, buffer = Arguments(), CodeBuffer()
    arguments.pointer("p_x", "x", dtype_name(x.type))
    arguments.pointer("p_out", "out", dtype_name(out.type))
    arguments.integers(rows=rows, length=length, step=x.strides[axis])
    axes = Axes(arguments, "", space.lens, space.strides)
    buffer.line(*arguments.bind())
    teams = THREADS // size
    buffer.line(f"own = block_index(0) * {teams} + idiv(thread_index(0), {size})")
    buffer.line("row = imin(own, rows - 1)")
    buffer.line(f"member = imod(thread_index(0), {size})")
    places = axes.split(buffer, "row")
    buffer.line(f"r_x = offset(p_x, {axes.offset(0, places)})")
    buffer.line("place = imin(member, length - 1)")
    buffer.line(f"best = {order.emit(buffer, 'load_scalar(r_x, place * step)')}")
    with buffer.block(f"for j in range(member + {size}, length, {size}):"):
        key = order.emit(buffer, "load_scalar(r_x, j * step)")
        with buffer.block(f"if {'ge' if last else 'gt'}({key}, best):"):
            buffer.line(f"best = {key}")
            buffer.line("place = j")
    join_first(buffer, order, size, THREADS, last)
    with buffer.block("if (own < rows) & (member == 0):"):
        buffer.line(f"store_scalar(p_out, {axes.offset(1, places)}, place)")
    name = f"arg{'max' if greatest else 'min'}_kernel"
    moved = x.footprint + out.footprint
    return gpu_launch(name, buffer.lines, arguments, ceil_div(rows, teams), THREADS, moved, prod(x.lens), origin)
