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
    rows: Length, kept: Length, given: Length, length: Length, type: Type, origin: str = ""
) -> Launch:
    """Return the launch that copies ``kept`` elements of each row, and fills the rest of a row of ``out`` with zeros.

    Nothing is written if ``x`` and ``out`` have the same address and rows of the same length.

    Args:
        rows: number of rows.
        kept: elements that are copied of each row.
        given: elements from one row of ``x`` to the next.
        length: elements of a row of ``out``; rows of ``out`` are contiguous.
        type: element type.
        origin: text of the instruction, for readers of the kernel.
    """
    storage = mover(type)
    lanes = 2 * host.lanes(storage)
    piece = PIECE_BYTES // type.size
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", storage)
    arguments.integers(kept=kept, given=given, length=length, piece=piece, pieces=ceil_div(maximum(length, 1), piece))
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
        f"    store_scalar(target, e, {_zero(storage)})",
    ]
    same = f"{arguments.same_address('p_x', 'p_out')} and given == length"
    body = [*arguments.bind(), f"if not ({same}):", *indent(for_tasks(inside))]
    return Launch(
        kernel=cpu_kernel("cache_copy_kernel", kernel_text(body), origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(rows * ceil_div(maximum(length, 1), piece), (rows, length))),
        bytes=0 if known_equal(given, length) else rows * (kept + length) * type.size,
        replaceable=("x",),
    )


def _zero(storage: str) -> str:
    return f"const_{storage}(0, 0)"
