"""Copy a cache to where its update is computed, unless both are the same memory."""

from __future__ import annotations

from ....core.dim import Length, ceil_div, maximum, minimum
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ..kernel import gpu_grid, gpu_kernel

THREADS = 256
"""Threads per block; each copies single elements, a block apart."""
MOST_BLOCKS = 1024
"""Most blocks: some for each multiprocessor, few enough that a copy that is skipped costs one wave of empty blocks."""
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
    blocks = minimum(ceil_div(total, THREADS), MOST_BLOCKS)
    arguments.integers(kept=kept, given=given, length=maximum(length, 1), items=total, step=blocks * THREADS)
    lines = [
        *arguments.bind(),
        f"if not ({arguments.same_address('p_x', 'p_out')} and given == length):",
        f"    item = block_index(0) * {THREADS} + thread_index(0)",
        "    while item < items:",
        "        row = idiv(item, length)",
        "        column = item - row * length",
        "        if column < kept:",
        "            store_scalar(p_out, item, load_scalar(p_x, row * given + column))",
        "        else:",
        f"            store_scalar(p_out, item, cast_{storage}(0))",
        "        item += step",
    ]
    kernel = gpu_kernel("cache_copy_kernel", lines, THREADS, len(arguments.values), origin)
    return Launch(kernel, arguments.values, gpu_grid(blocks, THREADS), bytes=2 * total * type.size, replaceable=("x",))
