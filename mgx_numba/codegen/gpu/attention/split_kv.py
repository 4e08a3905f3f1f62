"""Split-KV attention: combine partial results, in the last block of a row of parts or in a second launch."""

from __future__ import annotations

from ....core.dim import Length, SharedLength, ceil_div
from ...arguments import Arguments
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ..kernel import gpu_grid, gpu_kernel, gpu_launch
from .attention_text import declare_result, finished

THREADS = 128
"""Threads per block. No figures kept."""
CLEARING_THREADS = 256
"""Threads per block of the launch that clears counters: those of small launches, which it joins."""
LANES = 4
"""Features per thread: 16 bytes."""
AT_ONCE = 8
"""Parts whose loads are in flight together, to hide the latency of L2."""


def split_scratch(problem: AttentionProblem, splits: SharedLength) -> SharedLength:
    """Return the bytes of the partial results of ``splits`` parts: float32 ``[splits, batch, heads, queries,
    features]``, then for each such row the base-2 logarithm that its weights are relative to, and the sum of its
    weights."""
    return 4 * splits * problem.batch * problem.heads * problem.queries * (problem.width + 2)


def join_split_kv(problem: AttentionProblem, first: Launch, splits: SharedLength) -> Solution:
    """Return both launches of split-KV attention.

    Args:
        first: launch that writes partial results to ``scratch``, see `split_scratch`.
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
        f"pitch = across * {LANES}",
    )
    with buffer.block("if row < rows:"):
        add_parts(buffer, "p_scratch", "splits", "rows", "row", AT_ONCE)
        buffer.line("line = idiv(row, queries)", "batch = idiv(line, heads)")
        place = "batch * out_b + (line - batch * heads) * out_h + (row - line * queries) * out_s + feature"
        store_sums(problem, buffer, place)
    values = arguments.values
    work = f"{'_' * bool(problem.epilogue.name)}{problem.epilogue.name}"
    kernel = gpu_kernel(f"join_attention{work}_kernel", buffer.lines, THREADS, len(values))
    scratch = split_scratch(problem, splits)
    second = Launch(kernel, values, gpu_grid(ceil_div(rows * across, THREADS), THREADS), 0, scratch)
    return Solution((first, second), scratch)


def clear_counters_launch(count: Length, origin: str = "") -> Launch:
    """Return the launch that sets ``count`` int32 ``counters`` to 0."""
    arguments, buffer = Arguments(), CodeBuffer()
    arguments.pointer("p_counters", "counters", "int32")
    arguments.integers(count=count)
    buffer.line(*arguments.bind(), f"item = block_index(0) * {CLEARING_THREADS} + thread_index(0)")
    with buffer.block("if item < count:"):
        buffer.line("store_scalar(p_counters, item, 0)")
    blocks = ceil_div(count, CLEARING_THREADS)
    return gpu_launch(
        "clear_counters_kernel", buffer.lines, arguments, blocks, CLEARING_THREADS, 4 * count, origin=origin
    )


def add_parts(
    buffer: CodeBuffer, source: str, parts: str, rows: str, row: str, at_once: int, numbers: str = ""
) -> None:  # fmt: skip
    """Emit the partial result of a row over all parts: ``sums`` of the features from ``feature`` on, relative to
    ``top``, and ``total``, the sum of its weights.

    Loads of ``at_once`` parts come first. Beyond the last part its values are loaded again with weight 0.

    Args:
        source: pointer to float32 ``[parts, rows, pitch]``.
        numbers: index of ``top`` and ``total`` of each row, ``[parts, rows, 2]``; "": behind these.
    """
    buffer.line(
        f"numbers = {numbers or f'{parts} * {rows} * pitch'}",
        "top = const_float32(-INF, 0)",
        "total = const_float32(0, 0)",
        f"sums = const_float32(0, {LANES})",
        "part = 0",
    )
    with buffer.block(f"while part < {parts}:"):
        for k in range(at_once):
            buffer.line(
                f"own{k} = imin(part + {k}, {parts} - 1) * {rows} + {row}",
                f"pair{k} = load_aligned({source}, numbers + own{k} * 2, 2)",
                f"sums{k} = load_aligned({source}, own{k} * pitch + feature, {LANES})",
            )
        buffer.line("before = top")
        for k in range(at_once):
            buffer.line(f"top = max(top, extract(pair{k}, 0))")
        buffer.line(
            "base = where(top == -INF, const_float32(0, 0), top)",
            "factor = exp2_quick(sub(before, base))",
            "total = mul(total, factor)",
            f"sums = mul(sums, splat(factor, {LANES}))",
        )
        for k in range(at_once):
            buffer.line(
                f"inside = part + {k} < {parts}",
                f"factor = exp2_quick(sub(extract(pair{k}, 0), base))",
                f"total = where(inside, fma(extract(pair{k}, 1), factor, total), total)",
                f"sums = where(inside, fma(sums{k}, splat(factor, {LANES}), sums), sums)",
            )
        buffer.line(f"part = part + {at_once}")


def store_sums(problem: AttentionProblem, buffer: CodeBuffer, place: str) -> None:
    """Emit the store of the results of `add_parts` at ``place`` of the result."""
    empty = "" if problem.nan_rows else "where(total == 0, const_float32(0, 0), "
    buffer.line(f"inverse = {empty}reciprocal_quick(total){')' * bool(empty)}", f"place = {place}")
    made = finished(problem, buffer, f"mul(sums, splat(inverse, {LANES}))", LANES)
    buffer.line(f"store(p_out, place, {made})")
