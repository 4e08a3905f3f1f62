"""Prefetching in reduction kernels, and the alignment of streamed results."""

from __future__ import annotations

from ....core.dim import known_in, less_equal, preferred
from .. import host
from ..loops import AHEAD_BYTES, streamable
from ..machine import machine
from .reduction_layout import Names, ReduceLayout

ROWS_AHEAD = 16
"""Prefetch distance, in rows, of columns in a single stage."""
AHEAD_SHARE = 4
"""The longest row that is prefetched as a whole takes one part in this many of the L2 cache."""


def prefetches(layout: ReduceLayout, k: int, place: str, at: str = "q") -> list[str]:
    """Return lines that prefetch the data that one loop step reads of input ``k``, at pointers named ``at``."""
    step = host.CACHE_LINE // layout.walk.inputs[k].type.size
    return [f"prefetch({at}_x{k}, {place} + {i})" for i in range(0, layout.lanes, step)]


def soon_read(layout: ReduceLayout, names: Names, stage: int) -> list[str]:
    """Return lines that prefetch data that is read soon, of operands that come from memory.

    The first stage prefetches the data that it will read itself. Later stages, whose row is cached by then, prefetch
    the first stage's next data: the next row, or in column mode the next columns.
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
    """Return the name of the result to whose addresses the loop of a stage is aligned; "" if it streams none."""
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
