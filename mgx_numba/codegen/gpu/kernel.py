"""Kernels in the GPU's language."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernel import KernelSource
from ..launch import Grid

__all__ = ["NAME", "gpu_grid", "gpu_kernel"]

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


def gpu_grid(blocks: int, threads: int, planes: int = 1) -> Grid:
    """A grid of ``blocks`` times ``planes`` blocks of this many threads along one axis."""
    return Grid((blocks, planes, 1), (threads, 1, 1))
