"""Kernels that store numbers passed as arguments, or arithmetic progressions."""

from __future__ import annotations

from itertools import product

from ....errors import UnsupportedError
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import NumbersProblem, RangeProblem
from ..architecture import WARP
from ..cluster.pointwise import blocks_unless_empty
from ..kernel import gpu_grid, gpu_launch
from ..printer import dtype_name
from .elements import ElementText

MOST_NUMBERS = 128
"""Most numbers per launch; each takes two words of an argument block of 4 KiB (CUDA C++ programming guide, "Function
Parameters")."""


def numbers_launch(problem: NumbersProblem) -> Launch:
    """Return a launch that stores numbers; kernels differ in the element type and in how many there are.

    Raises:
        UnsupportedError: there are more than an argument block has room for.
    """
    out, count = problem.out, len(problem.values)
    if count > MOST_NUMBERS:
        raise UnsupportedError(f"{count} numbers are more than the {MOST_NUMBERS} of an argument block")
    dtype, arguments, buffer = dtype_name(out.type), Arguments(), CodeBuffer()
    arguments.pointer("p_out", "out", dtype)
    for k, (value, index) in enumerate(zip(problem.values, product(*map(range, out.lens)))):
        arguments.integer(f"place{k}", sum(i * s for i, s in zip(index, out.strides)))
        arguments.integer(f"value{k}", value)
    buffer.line(*arguments.bind())
    with buffer.block("if thread_index(0) == 0:"):
        for k in range(count):
            buffer.line(f"store_scalar(p_out, place{k}, cast_{dtype}(value{k}))")
        buffer.line("pass" if not count else "")
    blocks, origin = int(count > 0), problem.origin
    return gpu_launch("numbers_kernel", buffer.lines, arguments, blocks, WARP, out.footprint, origin=origin)


def range_launch(problem: RangeProblem) -> Launch:
    """Return a launch that computes numbers at even distances.

    Raises:
        UnsupportedError: a number is an operand.
    """
    out = problem.out
    if problem.start is None or problem.step is None:
        raise UnsupportedError("GPU kernels count from numbers that are known before they are launched")
    text = ElementText([("out", out)], out.lens, [(1,), out.strides], 1)
    text.arguments.integers(start=problem.start, step=problem.step)
    text.begin()
    text.store(f"splat(cast_{dtype_name(out.type)}(start + {text.place(0)} * step), 1)")
    launch = text.launch("range_kernel", problem.origin, out.footprint)
    threads = launch.geometry.threads[0]  # type: ignore[union-attr]
    blocks = blocks_unless_empty(launch.geometry.blocks[0], [out])  # type: ignore[union-attr]
    return Launch(launch.kernel, launch.args, gpu_grid(blocks, threads), 0, out.footprint)
