"""Memory extents of a contraction's operands, for measuring or checking a contraction without its program."""

from __future__ import annotations

import math

from ...errors import UnsupportedError
from ..problems.convolution import ConvProblem
from ..problems.epilogue import PrologueOperand
from ..problems.gemm import GemmProblem
from .request import Request

LINE_ELEMENTS = 64
"""Most elements in a cache line: 64 of one byte."""


def extents(request: Request) -> tuple[int, int, int, list[int]]:
    """Return the elements that a plan may touch: of the left operand, the unpacked right operand, the result, and each
    epilogue operand.

    Raises:
        UnsupportedError: an operand has a negative stride.
    """
    problem = request.problem
    if isinstance(problem, GemmProblem):
        x = _reach((*problem.batch, problem.m, problem.k), problem.a_strides)
        w = _reach((*problem.batch, problem.k, problem.n), problem.b_strides)
    else:
        x = _reach((problem.batch, *problem.in_lens, problem.in_channels), (*problem.x_strides, 1))
        x += LINE_ELEMENTS if problem.line_behind else 0
        w = math.prod(problem.weight_lens)
    if problem.low_parts:  # two 16-bit parts take the space of one element; zeros end the last row
        x = (problem.low_parts + x + LINE_ELEMENTS) // 2
    (*rows, columns), out_strides = result_axes(problem)
    out = _reach((*rows, columns), out_strides)
    if isinstance(problem, ConvProblem) and problem.line_gap:
        out += (problem.out_lens[-2] - 1) * problem.line_gap
    extras = []
    for k, operand in enumerate(request.epilogue.operands):
        width = columns if operand.access in ("full", "per_n") else 1
        strides = request.strides[k] if k < len(request.strides) else ()
        if operand.access not in ("full", "per_m"):
            extras.append(width)
        elif strides:
            extras.append(_reach((*rows, width), (*strides, 1)))
        else:
            extras.append(math.prod(rows) * width)
    return x, w, out, extras


def result_axes(problem: GemmProblem | ConvProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lengths and strides of a result's batch axes, rows and columns.

    The gaps between the lines of a convolution's result are left out.
    """
    if isinstance(problem, GemmProblem):
        return (*problem.batch, problem.m, problem.n), (*problem.out_strides, 1)
    image, *_, pixel = problem.out_strides
    return (problem.batch, problem.out_pixels, problem.out_channels), (image, pixel, 1)


def prologue_extent(problem: GemmProblem | ConvProblem, operand: PrologueOperand) -> int:
    """Return the number of elements that a prologue operand spans."""
    batch = (problem.batch,) if isinstance(problem, ConvProblem) else problem.batch
    depth = problem.in_channels if isinstance(problem, ConvProblem) else problem.k
    return _reach((*batch, depth if operand.access == "per_k" else 1), (*operand.batch_strides, 1))


def _reach(lens: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last element of a tensor."""
    if min(strides, default=0) < 0:
        raise UnsupportedError(f"operands with strides {strides} are not measured")
    return 1 + sum((n - 1) * s for n, s in zip(lens, strides) if n > 0)
