"""Grids whose numbers of blocks follow from open lengths: blocks beyond the grid do nothing.

A node of a CUDA graph can then keep its grid at other lengths; changing the grid takes a driver several microseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from ...core.dim import Dim
from ..kernel import KernelSource
from ..launch import Grid, Launch

_START = "def kernel(args):\n"
_WORD = re.compile(r"^(\w+) = (\d+)$", re.M)


def with_limits(launch: Launch) -> Launch:
    """Return the launch with a kernel that compares block indices with the grid, along the axes of open length.

    Cooperative launches stay unchanged, because their blocks wait for each other.
    """
    grid = launch.geometry
    if not isinstance(grid, Grid) or grid.cooperative:
        return launch
    axes = tuple([axis for axis, blocks in enumerate(grid.blocks) if isinstance(blocks, Dim)])
    if not axes:
        return launch
    unused = (0,) * (head_number(launch.kernel, "SLOTS") - len(launch.args))
    args = (*launch.args, *unused, *(grid.blocks[axis] for axis in axes))
    return dataclasses.replace(launch, kernel=_limited(launch.kernel, axes), args=args)


def open_axes(kernel: KernelSource) -> tuple[bool, bool, bool]:
    """Return for each axis of a grid whether blocks beyond it do nothing."""
    bits = head_number(kernel, "OPEN")
    return bits & 1 != 0, bits & 2 != 0, bits & 4 != 0


def cluster_of(kernel: KernelSource) -> int:
    """Return the number of blocks of a cluster along axis 0, of which a grid has a multiple."""
    return head_number(kernel, "CLUSTER") or 1


@functools.lru_cache(maxsize=1024)
def _limited(kernel: KernelSource, axes: tuple[int, ...]) -> KernelSource:
    head, body = kernel.text.split(_START)
    slots = head_number(kernel, "SLOTS")
    inside = " and ".join([f"block_index({axis}) < args[{slots + k}]" for k, axis in enumerate(axes)])
    head = head.replace(f"SLOTS = {slots}\n", f"SLOTS = {slots + len(axes)}\nOPEN = {sum(1 << a for a in axes)}\n")
    body = re.sub(r"^(?=.)", "    ", body, flags=re.M)
    return dataclasses.replace(kernel, text=f"{head}{_START}    if {inside}:\n{body}")


@functools.lru_cache(maxsize=4096)
def head_number(kernel: KernelSource, name: str) -> int:
    """Return a number that a kernel's text sets; 0 if it sets none."""
    return int(dict(_WORD.findall(kernel.text.partition(_START)[0])).get(name, 0))
