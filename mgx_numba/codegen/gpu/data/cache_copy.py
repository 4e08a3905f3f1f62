"""Copy a cache to where its update is computed, unless both are the same memory."""

from __future__ import annotations

from ....core.dim import Length, ceil_div, maximum, minimum
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ..kernel import gpu_grid, gpu_kernel
from ..machine import multiprocessors

THREADS = 256
"""Threads per block."""
BLOCKS = 2
"""Blocks per multiprocessor, few so that a copy that is skipped costs little."""
AT_ONCE = 4
"""Elements of a thread whose loads are in flight together, a grid apart."""
_MOVERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def cache_copy_launch(
    rows: Length, kept: Length, given: Length, length: Length, type: Type, origin: str = ""
) -> Launch:
    """Return the launch that copies ``kept`` elements of each row, and fills the rest of a row of ``out`` with zeros.

    Nothing is written if ``x`` and ``out`` have the same address and rows of the same length. Arguments are those of
    the CPU's `cache_copy_launch`.
    """
    storage = _MOVERS[type.size]
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", storage)
    total = rows * length
    blocks = minimum(ceil_div(total, THREADS), BLOCKS * multiprocessors())
    arguments.integers(
        kept=kept, given=given, length=maximum(length, 1), items=total, most=maximum(kept, 1) - 1, step=blocks * THREADS
    )
    turns = range(AT_ONCE)
    lines = [
        *arguments.bind(),
        f"if not ({arguments.same_address('p_x', 'p_out')} and given == length):",
        f"    item = block_index(0) * {THREADS} + thread_index(0)",
        "    while item < items:",
    ]
    for k in turns:
        lines += [
            f"        item{k} = imin(item + {k} * step, items - 1)",
            f"        row{k} = idiv(item{k}, length)",
            f"        column{k} = item{k} - row{k} * length",
            f"        found{k} = cast_{storage}(0)",
        ]
    lines.append("        if kept > 0:")
    lines += [f"            found{k} = load_scalar(p_x, row{k} * given + imin(column{k}, most))" for k in turns]
    for k in turns:
        lines += [
            f"        if item + {k} * step < items:",
            f"            store_scalar(p_out, item{k}, found{k} if column{k} < kept else cast_{storage}(0))",
        ]
    lines.append(f"        item += {AT_ONCE} * step")
    kernel = gpu_kernel("cache_copy_kernel", lines, THREADS, len(arguments.values), origin)
    return Launch(kernel, arguments.values, gpu_grid(blocks, THREADS), bytes=2 * total * type.size, replaceable=("x",))
