"""Attention over parts of the keys: the launch that joins the parts."""

from __future__ import annotations

from ...arguments import Arguments
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ..kernel import gpu_grid, gpu_kernel

__all__ = ["join_parts"]

THREADS = 128
"""Of a block. No figures kept."""
LANES = 4
"""Features of a thread: 16 bytes."""


def join_parts(problem: AttentionProblem, first: Launch, splits: int) -> Solution:
    """A launch that writes ``splits`` parts to ``scratch``, and the launch that joins them.

    Scratch has float32: sums in the order part, batch, head, query and feature, then for each such row the logarithm to
    base 2 that its weights are relative to, and their sum.
    """
    rows = problem.batch * problem.heads * problem.queries
    across = problem.width // LANES
    arguments = Arguments()
    arguments.pointer("p_scratch", "scratch", "float32")
    arguments.pointer("p_out", "out", problem.dtype)
    arguments.integers(
        rows=rows, across=across, heads=problem.heads, queries=problem.queries, splits=splits,
        out_b=problem.out_strides[0], out_h=problem.out_strides[1], out_s=problem.out_strides[2],
    )  # fmt: skip
    buffer = CodeBuffer()
    for line in (
        *arguments.bind(),
        f"item = block_index(0) * {THREADS} + thread_index(0)",
        "row = idiv(item, across)",
        f"feature = (item - row * across) * {LANES}",
        f"numbers = rows * across * {LANES} * splits",
    ):
        buffer.line(line)
    with buffer.block("if row < rows:"):
        buffer.line("top = const_float32(-INF, 0)")
        with buffer.block("for part in range(splits):"):
            buffer.line("top = max(top, load_scalar(p_scratch, numbers + (part * rows + row) * 2))")
        for line in (
            "base = where(top == -INF, const_float32(0, 0), top)",
            "total = const_float32(0, 0)",
            f"sums = const_float32(0, {LANES})",
        ):
            buffer.line(line)
        with buffer.block("for part in range(splits):"):
            for line in (
                "own = part * rows + row",
                "factor = exp2_quick(sub(load_scalar(p_scratch, numbers + own * 2), base))",
                "total = fma(load_scalar(p_scratch, numbers + own * 2 + 1), factor, total)",
                f"found = load_aligned(p_scratch, own * across * {LANES} + feature, {LANES})",
                f"sums = fma(found, splat(factor, {LANES}), sums)",
            ):
                buffer.line(line)
        empty = "" if problem.nan_rows else "where(total == 0, const_float32(0, 0), "
        for line in (
            f"inverse = {empty}div(const_float32(1, 0), total){')' * bool(empty)}",
            "line = idiv(row, queries)",
            "batch = idiv(line, heads)",
            "place = batch * out_b + (line - batch * heads) * out_h + (row - line * queries) * out_s + feature",
            f"store(p_out, place, cast_{problem.dtype}(mul(sums, splat(inverse, {LANES}))))",
        ):
            buffer.line(line)
    values = arguments.values
    kernel = gpu_kernel("join_attention_kernel", buffer.lines, THREADS, len(values))
    scratch = 4 * splits * rows * (problem.width + 2)
    second = Launch(kernel, values, gpu_grid(-(-rows * across // THREADS), THREADS), 0, scratch)
    return Solution((first, second), scratch)
