"""What reduction kernels ask of memory: operands before they are read, results that start to go past the caches."""

from __future__ import annotations

from ....core.dim import known_in, less_equal, preferred
from .. import host
from ..loops import AHEAD_BYTES, streamable
from ..machine import machine
from .layout import ReduceLayout
from .names import Names

__all__ = ["prefetches", "soon_read", "streamed_result"]

ROWS_AHEAD = 16
"""Rows that columns in a single stage ask for ahead of the one that they read."""
AHEAD_SHARE = 4
"""Of so many parts of the second-level cache the longest row that is asked for as a whole takes one."""


def prefetches(layout: ReduceLayout, k: int, place: str, at: str = "q") -> list[str]:
    """Lines that ask for as much of an input as one step of a loop reads, at pointers that are named ``at``."""
    step = host.CACHE_LINE // layout.walk.inputs[k].type.size
    return [f"prefetch({at}_x{k}, {place} + {i})" for i in range(0, layout.lanes, step)]


def soon_read(layout: ReduceLayout, names: Names, stage: int) -> list[str]:
    """Lines that ask for what is read soon, of operands that come from memory.

    The first stage asks for what it will read itself; the others, whose row is in the caches by then, for what the
    first will read next: the next row, or in column mode the next columns.
    """
    found = []
    walk, longest = layout.walk, machine().l2_bytes // AHEAD_SHARE
    for k, tensor in enumerate(walk.inputs if walk.past_caches else ()):
        size, strides, next_row = tensor.type.size, names.loop_strides[k], names.next_row(k)
        if not walk.is_full[k] or not known_in(layout.inner[k], 1) or layout.same_for_rows(k):
            continue
        if not walk.row_mode:
            rows = ROWS_AHEAD if layout.stages.count == 1 else max(1, AHEAD_BYTES // (layout.lanes * size))
            ahead = f"c + {layout.lanes}" if stage or not strides else f"c + {rows} * ({strides[-1][1]})"
        elif stage == 0:
            ahead = f"c + {AHEAD_BYTES // size}"
        elif next_row and not layout.loops and preferred(less_equal(layout.cols * size, longest)):
            ahead = f"c + {next_row}"
        else:
            continue
        found += prefetches(layout, k, ahead)
    return found


def streamed_result(layout: ReduceLayout, stage: int) -> str:
    """Name of the result whose addresses the loop of a stage lines up with, if it streams any."""
    walk = layout.walk
    for k, _ in layout.stages.stored_in(stage):
        if (
            walk.streamed
            and k not in walk.parts
            and known_in(layout.inner[len(walk.inputs) + k], 1)
            and streamable(walk.outputs[k], layout.lanes)
        ):
            return f"out{k}"
    return ""
