"""Copy a cache to where its update is computed, unless both are the same memory.

A caller, or the colouring of the arena, may give the cache and its update one buffer. The kernel compares both
addresses when it runs, so that one plan serves both cases.
"""

from __future__ import annotations

from ....core.dim import Length, ceil_div, known_equal, maximum
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import for_tasks, indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty
from .row_tasks import mover

PIECE_BYTES = 1 << 18
"""Bytes of one task: some ten microseconds of copying, against tens of nanoseconds for a claim. No figures kept."""


def cache_copy_launch(
    rows: Length, copied: Length, x_row: Length, out_row: Length, type: Type, origin: str = ""
) -> Launch:
    """Return the launch that copies ``copied`` elements of each row, and fills the rest of a row of ``out`` with zeros.

    Nothing is written if ``x`` and ``out`` have the same address and rows of the same length.

    Args:
        rows: number of rows.
        copied: elements that are copied of each row.
        x_row: elements from one row of ``x`` to the next.
        out_row: elements of a row of ``out``; rows of ``out`` are contiguous.
        type: element type.
        origin: text of the instruction, for readers of the kernel.
    """
    storage = mover(type)
    lanes = 2 * host.lanes(storage)
    piece = PIECE_BYTES // type.size
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", storage)
    pieces = ceil_div(maximum(out_row, 1), piece)
    arguments.integers(kept=copied, given=x_row, length=out_row, piece=piece, pieces=pieces)
    inside = [
        "row = idiv(task, pieces)",
        "start = (task - row * pieces) * piece",
        "stop = imin(start + piece, length)",
        "copied = imax(imin(stop, kept) - start, 0)",
        "source = offset(p_x, row * given + start)",
        "target = offset(p_out, row * length + start)",
        f"for c in range(0, copied, {lanes}):",
        f"    if c + {lanes} <= copied:",
        f"        store(target, c, load(source, c, {lanes}))",
        "    else:",
        "        for e in range(c, copied):",
        "            store_scalar(target, e, load_scalar(source, e))",
        "for e in range(copied, stop - start):",
        f"    store_scalar(target, e, const_{storage}(0, 0))",
    ]
    same = f"{arguments.same_address('p_x', 'p_out')} and given == length"
    body = [*arguments.bind(), f"if not ({same}):", *indent(for_tasks(inside))]
    return Launch(
        kernel=cpu_kernel("cache_copy_kernel", kernel_text(body), origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(rows * pieces, (rows, out_row))),
        bytes=0 if known_equal(x_row, out_row) else rows * (copied + out_row) * type.size,
        replaceable=("x",),
    )
