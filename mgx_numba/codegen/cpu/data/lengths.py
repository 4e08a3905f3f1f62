"""Tensors of lengths, and of positions 0, 1, 2, ..."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, ceil_div
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import kernel_text
from ..kernel import cpu_kernel

__all__ = ["iota_launch", "lengths_launch"]

_PIECE = 4096
"""Elements of a task of `iota_launch`: 32 KiB, some microseconds."""


def lengths_launch(values: Sequence[Length], origin: str = "") -> Launch:
    """Return one launch that stores numbers in ``out``, whose elements are contiguous int64."""
    arguments = Arguments()
    arguments.pointer("out", "out", "int64")
    arguments.integer("count", len(values))
    first = len(arguments.names)
    for k, value in enumerate(values):
        arguments.integer(f"value{k}", value)
    # All tensors of lengths have one kernel: its text does not name the values.
    lines = [
        *arguments.bind(("out", "count")),
        "for i in range(count):",
        f"    store_scalar(out, i, args[{first} + i])",
    ]
    kernel = cpu_kernel("lengths_kernel", kernel_text(lines), origin)
    return Launch(kernel=kernel, args=arguments.values, geometry=TaskRange(1), bytes=8 * len(values))


def iota_launch(count: Length, origin: str = "") -> Launch:
    """Return one launch that stores 0, 1, ... count - 1 in ``out``, whose elements are contiguous int64."""
    arguments = Arguments()
    arguments.pointer("out", "out", "int64")
    arguments.integer("count", count)
    lines = [
        *arguments.bind(),
        f"for i in range(begin * {_PIECE}, imin(end * {_PIECE}, count)):",
        "    store_scalar(out, i, i)",
    ]
    kernel = cpu_kernel("iota_kernel", kernel_text(lines), origin)
    return Launch(kernel=kernel, args=arguments.values, geometry=TaskRange(ceil_div(count, _PIECE)), bytes=8 * count)
