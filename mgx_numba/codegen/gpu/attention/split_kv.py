"""Second launch of split-KV attention: combine the partial results."""

from __future__ import annotations

from ....core.dim import SharedLength, ceil_div
from ...arguments import Arguments
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ..kernel import gpu_grid, gpu_kernel
from .attention_text import declare_result, finished

THREADS = 128
"""Threads per block. No figures kept."""
LANES = 4
"""Features per thread: 16 bytes."""
AT_ONCE = 8
"""Parts whose loads are in flight together, to hide the latency of L2."""


def join_split_kv(problem: AttentionProblem, first: Launch, splits: SharedLength) -> Solution:
    """Return both launches of split-KV attention.

    Args:
        first: launch that writes partial results to ``scratch``: float32 ``[splits, batch, heads, queries, features]``,
            then for each such row the base-2 logarithm that its weights are relative to, and the sum of its weights.
        splits: number of parts.
    """
    rows = problem.batch * problem.heads * problem.queries
    across = problem.width // LANES
    arguments = Arguments()
    arguments.pointer("p_scratch", "scratch", "float32")
    declare_result(problem, arguments)
    arguments.integers(
        rows=rows, across=across, heads=problem.heads, queries=problem.queries, splits=splits,
        out_b=problem.out_strides[0], out_h=problem.out_strides[1], out_s=problem.out_strides[2],
    )  # fmt: skip
    buffer = CodeBuffer()
    buffer.line(
        *arguments.bind(),
        f"item = block_index(0) * {THREADS} + thread_index(0)",
        "row = idiv(item, across)",
        f"feature = (item - row * across) * {LANES}",
        f"numbers = rows * across * {LANES} * splits",
    )
    with buffer.block("if row < rows:"):
        buffer.line(
            "top = const_float32(-INF, 0)",
            "total = const_float32(0, 0)",
            f"sums = const_float32(0, {LANES})",
            "part = 0",
        )
        with buffer.block("while part < splits:"):
            _add_splits(buffer)
        empty = "" if problem.nan_rows else "where(total == 0, const_float32(0, 0), "
        buffer.line(
            f"inverse = {empty}div(const_float32(1, 0), total){')' * bool(empty)}",
            "line = idiv(row, queries)",
            "batch = idiv(line, heads)",
            "place = batch * out_b + (line - batch * heads) * out_h + (row - line * queries) * out_s + feature",
        )
        made = finished(problem, buffer, f"mul(sums, splat(inverse, {LANES}))", LANES)
        buffer.line(f"store(p_out, place, {made})")
    values = arguments.values
    work = f"{'_' * bool(problem.epilogue.name)}{problem.epilogue.name}"
    kernel = gpu_kernel(f"join_attention{work}_kernel", buffer.lines, THREADS, len(values))
    scratch = 4 * splits * rows * (problem.width + 2)
    second = Launch(kernel, values, gpu_grid(ceil_div(rows * across, THREADS), THREADS), 0, scratch)
    return Solution((first, second), scratch)


def _add_splits(buffer: CodeBuffer) -> None:
    """Emit the addition of `AT_ONCE` parts, all loads first. Beyond the last part its values are loaded again with
    weight 0."""
    for k in range(AT_ONCE):
        buffer.line(
            f"own{k} = imin(part + {k}, splits - 1) * rows + row",
            f"top{k} = load_scalar(p_scratch, numbers + own{k} * 2)",
            f"weight{k} = load_scalar(p_scratch, numbers + own{k} * 2 + 1)",
            f"sums{k} = load_aligned(p_scratch, own{k} * across * {LANES} + feature, {LANES})",
        )
    buffer.line("before = top")
    for k in range(AT_ONCE):
        buffer.line(f"top = max(top, top{k})")
    buffer.line(
        "base = where(top == -INF, const_float32(0, 0), top)",
        "factor = exp2_quick(sub(before, base))",
        "total = mul(total, factor)",
        f"sums = mul(sums, splat(factor, {LANES}))",
    )
    for k in range(AT_ONCE):
        buffer.line(
            f"inside = part + {k} < splits",
            f"factor = exp2_quick(sub(top{k}, base))",
            f"total = where(inside, fma(weight{k}, factor, total), total)",
            f"sums = where(inside, fma(sums{k}, splat(factor, {LANES}), sums), sums)",
        )
    buffer.line(f"part = part + {AT_ONCE}")
