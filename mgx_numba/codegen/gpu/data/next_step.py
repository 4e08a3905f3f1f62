"""Prepare a decoder's next step on the device: its tokens, mask and positions follow from the tokens chosen last."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....core.types import Type
from ...arguments import Arguments
from ...kernel import KernelSource
from ...launch import Grid, Operand
from ..kernel import gpu_grid, gpu_kernel

THREADS = 32
"""Threads per block, one row each: a warp."""
NAMES = ("chosen", "told", "lengths", "ids", "mask", "places")
"""Operands of the kernel, in order; ``places`` may be missing."""


def _arguments(types: Mapping[str, Type], rows: int, room: int) -> Arguments:
    arguments = Arguments()
    for name in NAMES:
        if name in types:
            arguments.pointer(f"p_{name}", name, types[name].name.removesuffix("_type"))
    arguments.integers(rows=rows, room=room)
    return arguments


def next_step_kernel(types: Mapping[str, Type]) -> KernelSource:
    """Return the kernel for operands of these integer types.

    ``length = lengths[row]`` is the position of the step's token in a row. The kernel writes:

    - ``told[length % 2, row] = chosen[row]``: a token stays readable while the next step runs
    - ``ids[row] = chosen[row]``
    - ``lengths[row] = places[row] = length + 1``
    - ``mask[row, length + 1] = 1``, if the mask [rows, room] has the column
    """
    arguments = _arguments(types, 0, 0)
    kinds = {name: type.name.removesuffix("_type") for name, type in types.items()}
    lines = [
        *arguments.bind(),
        f"row = block_index(0) * {THREADS} + thread_index(0)",
        "if row < rows:",
        "    token = load_scalar(p_chosen, row)",
        "    length = load_scalar(p_lengths, row)",
        "    store_scalar(p_told, imod(length, 2) * rows + row, token)",
        f"    store_scalar(p_ids, row, cast_{kinds['ids']}(token))",
        "    store_scalar(p_lengths, row, length + 1)",
        "    if length + 1 < room:",
        f"        store_scalar(p_mask, row * room + length + 1, cast_{kinds['mask']}(1))",
    ]
    if "places" in kinds:
        lines.append(f"    store_scalar(p_places, row, cast_{kinds['places']}(length + 1))")
    return gpu_kernel("next_step_kernel", lines, THREADS, len(arguments.values))


def next_step(types: Mapping[str, Type], addresses: Mapping[str, int], rows: int, room: int) -> tuple[np.ndarray, Grid]:
    """Return the argument block (int64) and the grid of `next_step_kernel`."""
    values = _arguments(types, rows, room).values
    words = [addresses[v.name] if isinstance(v, Operand) else v for v in values]
    return np.array(words, np.int64), gpu_grid(-(-rows // THREADS), THREADS)
