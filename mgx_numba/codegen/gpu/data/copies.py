"""Several copies in one launch: the pieces of a concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import ceil_div, known_in
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..cluster.flat_index import Axes, contiguous_lanes
from ..kernel import gpu_launch
from ..printer import dtype_name, most_lanes
from .elements import THREADS

COPIES_KERNEL = "copies_kernel"
"""Name of the kernels."""
MOST_COPIES = 8
"""Most copies per launch; each thread searches for its own. No figures kept."""


def copies_launch(pairs: Sequence[tuple[Tensor, Tensor]], origin: str) -> Launch:
    """Return the launch that copies ``x0`` to ``out0``, ``x1`` to ``out1``, and so on: non-empty tensors, equal in
    lengths and type pairwise. No result overlaps another operand."""
    arguments, ends = Arguments(), [0]
    walked = []
    for k, (source, target) in enumerate(pairs):
        for name, tensor in ((f"x{k}", source), (f"out{k}", target)):
            arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        found = collapse(target.lens, [source.strides, target.strides], order_by=1)
        space = found if found.rank else Space((1,), ((0,), (0,)))
        together = [(space.strides[0], source.offset), (space.strides[1], target.offset)]
        lanes = contiguous_lanes(most_lanes(target.type.size), space.lens[-1], together)
        lens = (*space.lens[:-1], space.lens[-1] // lanes)
        ends.append(ends[-1] + prod(lens))
        arguments.integer(f"end{k}", ends[-1])
        walked.append((lanes, known_in(space.strides[0][-1], 0), Axes(arguments, f"a{k}_", lens, space.strides, lanes)))
    buffer = CodeBuffer()
    buffer.line(*arguments.bind(), f"item = block_index(0) * {THREADS} + thread_index(0)")
    for k, (lanes, repeated, axes) in enumerate(walked):
        begin = f"end{k - 1}" if k else "0"
        with buffer.block(f"if (item >= {begin}) & (item < end{k}):"):
            places = axes.split(buffer, buffer.emit(f"item - {begin}"))
            at = [axes.offset(operand, places) for operand in (0, 1)]
            aligned = "_aligned" if lanes > 1 else ""
            load = "load_splat" if repeated else f"load{aligned}"
            buffer.line(f"store{aligned}(p_out{k}, {at[1]}, {load}(p_x{k}, {at[0]}, {lanes}))")
    moved = sum(tensor.footprint for pair in pairs for tensor in pair)
    blocks = ceil_div(ends[-1], THREADS)
    return gpu_launch(COPIES_KERNEL, buffer.lines, arguments, blocks, THREADS, moved, origin=origin)
