"""Position tables for resized axes, computed on the device because lengths are symbolic."""

from __future__ import annotations

from ....core.dim import ceil_div
from ....ops.resize import Resize
from ...arguments import Arguments
from ...launch import Launch
from ...resampling import Resampled, clipped, coordinates, nearest, taps
from ...statements import cast_text, indent
from ..kernel import gpu_launch

THREADS = 128
"""Threads of a block, each of which computes the entries of one position."""


def nearest_positions(op: Resize, axis: Resampled, origin: str = "") -> Launch:
    """Return a launch that fills the operand ``index`` with the position nearest to each coordinate."""
    return _table("nearest_positions_kernel", op, axis, "", [clipped(nearest(op, 0)), _stored(0, 1)], origin)


def tap_positions(op: Resize, axis: Resampled, dtype: str, origin: str = "") -> Launch:
    """Return a launch that fills the operands ``index`` and ``weight`` (of type ``dtype``), position by position."""
    lines, positions = taps(op, 0)
    for k, position in enumerate(positions):
        weight = cast_text(f"w{k}", "float32", dtype)
        lines += [clipped(position), _stored(k, len(positions))]
        lines.append(f"store_scalar(p_weight, i * {len(positions)} + {k}, {weight})")
    return _table("tap_positions_kernel", op, axis, dtype, lines, origin)


def _stored(part: int, parts: int) -> str:
    """Return the line that stores ``at`` as an offset in the source."""
    return f"store_scalar(p_index, i * {parts} + {part}, at * step)"


def _table(name: str, op: Resize, axis: Resampled, weight: str, lines: list[str], origin: str) -> Launch:
    arguments = Arguments()
    arguments.pointer("p_index", "index", "int64")
    if weight:
        arguments.pointer("p_weight", "weight", weight)
    arguments.integers(count=axis.count, length=axis.length, step=axis.step)
    text = [
        *arguments.bind(),
        f"i = block_index(0) * {THREADS} + thread_index(0)",
        "if i < count:",
        *indent([*coordinates(op, axis.factor, 0), *lines]),
    ]
    return gpu_launch(name, text, arguments, ceil_div(axis.count, THREADS), THREADS, origin=origin)
