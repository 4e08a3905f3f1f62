"""Integers that follow from lengths alone: lengths themselves, and the positions along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, ceil_div
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...statements import for_tasks, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel

__all__ = ["lengths_launch", "positions_launch"]

POSITIONS = 1 << 14
"""Positions that a task stores: 128 KiB, which takes longer than claiming a task."""
INT64 = 8  # bytes


def lengths_launch(values: Sequence[Length], origin: str = "") -> Launch:
    """Return one launch that stores numbers in ``out``, int64 one after the other."""
    arguments = Arguments()
    arguments.pointer("p_out", "out", "int64")
    arguments.integer("count", len(values))
    own = [arguments.integer(f"value{k}", value) for k, value in enumerate(values)]
    first = len(arguments.names) - len(own)
    # the text is the same for any number of values
    body = ["for i in range(count):", f"    store_scalar(p_out, i, args[{first} + i])"]
    text = kernel_text([*arguments.bind(("p_out", "count")), *for_tasks(body)])
    kernel = cpu_kernel("lengths_kernel", text, origin)
    return Launch(kernel, arguments.values, TaskRange(1), bytes=INT64 * len(own))


def positions_launch(length: Length, origin: str = "") -> Launch:
    """Return one launch that stores 0, 1, ... ``length`` - 1 in ``out``, int64 one after the other."""
    lanes = host.lanes("int64")
    arguments = Arguments()
    arguments.pointer("p_out", "out", "int64")
    arguments.integer("length", length)

    def store(left: str) -> list[str]:
        value = f"add(iota_int64({lanes}), c)"
        return [f"store_tail(p_out, c, {value}, {left})" if left else f"store(p_out, c, {value})"]

    body = [
        f"first = task * {POSITIONS}",
        f"last = imin(length, first + {POSITIONS})",
        *vector_loop(lanes, store),
    ]
    kernel = cpu_kernel("positions_kernel", kernel_text([*arguments.bind(), *for_tasks(body)]), origin)
    return Launch(kernel, arguments.values, TaskRange(ceil_div(length, POSITIONS)), bytes=INT64 * length)
