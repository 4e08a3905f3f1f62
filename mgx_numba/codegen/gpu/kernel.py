"""Kernels in the GPU's language."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dim import Length, known_less_equal
from ..arguments import Arguments
from ..kernel import KernelSource
from ..launch import MOST_PLANES, Grid

__all__ = ["NAME", "block_of_plane", "gpu_grid", "gpu_kernel", "plane_grid"]

NAME = "gpu"
"""This back end's name."""


def gpu_kernel(
    name: str, lines: Sequence[str], threads: int, slots: int, origin: str = "", blocks: int = 1, cluster: int = 1
) -> KernelSource:
    """A kernel of blocks of ``threads`` threads, whose function ``kernel(args)`` has these lines.

    ``args`` are ``slots`` int64 words; ``blocks`` of them shall fit on a multiprocessor, and as many as ``cluster``
    that follow one another along the first axis of the grid reach each other's memory. All numbers are part of the
    text: these of threads decide how many registers each may have, and the argument block is passed by value.
    """
    body = "    " + "\n    ".join(lines)
    shared = f"BLOCKS = {blocks}\n" * (blocks > 1) + f"CLUSTER = {cluster}\n" * (cluster > 1)
    text = f"THREADS = {threads}\nSLOTS = {max(slots, 1)}\n{shared}\n\ndef kernel(args):\n{body}\n"
    return KernelSource(NAME, name, text, origin)


def gpu_grid(blocks: Length, threads: int, planes: Length = 1) -> Grid:
    """A grid of ``blocks`` times ``planes`` blocks of this many threads along one axis."""
    return Grid((blocks, planes, 1), (threads, 1, 1))


def plane_grid(blocks: Length, planes: Length, threads: int, splits: Length = 1, shared_bytes: int = 0) -> Grid:
    """A grid of ``blocks`` for each of ``planes`` and ``splits``: the second axis has planes, and the third splits.

    Planes that may be more than `MOST_PLANES` follow one another along the first axis: `block_of_plane` finds both
    places.
    """
    if not known_less_equal(planes, MOST_PLANES):
        blocks, planes = blocks * planes, 1
    return Grid((blocks, planes, splits), (threads, 1, 1), shared_bytes)


def block_of_plane(arguments: Arguments, blocks: Length, planes: Length) -> tuple[str, list[str]]:
    """The number of a block in its plane, of `plane_grid`, an expression, and the statements that make it and the
    number of its ``plane``; they come after those that bind ``arguments``, which get what they need."""
    if known_less_equal(planes, MOST_PLANES):
        return "block_index(0)", ["plane = block_index(1)"]
    arguments.integer("plane_blocks", blocks)
    return "block", [
        "plane = idiv(block_index(0), plane_blocks)",
        "block = block_index(0) - plane * plane_blocks",
    ]
