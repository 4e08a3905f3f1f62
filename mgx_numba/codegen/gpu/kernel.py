"""Kernel sources in the GPU language."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dim import Length, known_less_equal
from ..arguments import Arguments
from ..kernel import KernelSource
from ..launch import MOST_PLANES, Grid, Launch

NAME = "gpu"
"""Name of this back end."""


def gpu_kernel(
    name: str, lines: Sequence[str], threads: int, slots: int, origin: str = "", blocks: int = 1, cluster: int = 1
) -> KernelSource:
    """Return a kernel with blocks of ``threads`` threads, whose function ``kernel(args)`` has these lines.

    Args:
        slots: int64 words of ``args``, which are passed by value.
        blocks: resident blocks per multiprocessor to aim at; limits registers.
        cluster: blocks per cluster along the grid's first axis.

    All these numbers are part of the text.
    """
    body = "    " + "\n    ".join(lines)
    shared = f"BLOCKS = {blocks}\n" * (blocks > 1) + f"CLUSTER = {cluster}\n" * (cluster > 1)
    text = f"THREADS = {threads}\nSLOTS = {max(slots, 1)}\n{shared}\n\ndef kernel(args):\n{body}\n"
    return KernelSource(NAME, name, text, origin)


def gpu_grid(blocks: Length, threads: int, planes: Length = 1) -> Grid:
    """Return a grid of ``blocks`` by ``planes`` blocks."""
    return Grid((blocks, planes, 1), (threads, 1, 1))


def gpu_launch(
    name: str,
    lines: Sequence[str],
    arguments: Arguments,
    blocks: Length,
    threads: int,
    bytes: Length = 0,
    flops: Length = 0,
    origin: str = "",
    planes: Length = 1,
) -> Launch:
    """Return the launch of `gpu_kernel` on `gpu_grid`, with the values of ``arguments``."""
    kernel = gpu_kernel(name, lines, threads, len(arguments.values), origin)
    return Launch(kernel, arguments.values, gpu_grid(blocks, threads, planes), flops, bytes)


def plane_grid(blocks: Length, planes: Length, threads: int, splits: Length = 1, shared_bytes: int = 0) -> Grid:
    """Return a grid of ``blocks`` per plane and split: axis 1 counts planes, axis 2 splits. Planes that may exceed
    `MOST_PLANES` are folded into axis 0; `block_of_plane` decodes both forms."""
    if not known_less_equal(planes, MOST_PLANES):
        blocks, planes = blocks * planes, 1
    return Grid((blocks, planes, splits), (threads, 1, 1), shared_bytes)


def block_of_plane(arguments: Arguments, blocks: Length, planes: Length) -> tuple[str, list[str]]:
    """Return the expression of a block's index in its plane (see `plane_grid`), and the statements that compute it and
    ``plane``. The statements follow the binding of ``arguments``, which get the additional arguments."""
    if known_less_equal(planes, MOST_PLANES):
        return "block_index(0)", ["plane = block_index(1)"]
    arguments.integer("plane_blocks", blocks)
    return "block", [
        "plane = idiv(block_index(0), plane_blocks)",
        "block = block_index(0) - plane * plane_blocks",
    ]
