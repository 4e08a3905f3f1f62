"""Kernels for ensembles of decision trees: each thread evaluates all trees, one after the other, for one row."""

from __future__ import annotations

from ....core.types import Type
from ....ops.tree_ensemble import AGGREGATES, MISSING
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...problems.tree_tables import TreeTables
from ..kernel import gpu_launch

THREADS = 128
"""Threads per block. No figures kept."""


def trees_launch(x: Tensor, out: Tensor, sizes: TreeTables, aggregate: str, missing: bool, origin: str = "") -> Launch:
    """Return the launch for `TreeEnsemble`; operands have the names of the operator's inputs, and ``out``.

    The innermost stride of ``x`` is 1, ``out`` is packed, and all indices into tables fit int32.
    """
    rows, scores = out.lens
    dtype = "float64" if x.type is Type.double_type else "float32"
    neutral = {0.0: "0", float("inf"): "INF", float("-inf"): "-INF"}[AGGREGATES[aggregate][1]]
    join = {"sum": "add"}.get(aggregate, aggregate)
    arguments, buffer = Arguments(), CodeBuffer()
    for name in ("x", "splits", "weights", "out"):
        arguments.pointer(name, name, dtype)
    for name in ("features", "children", "roots", "columns", "depths"):
        arguments.pointer(name, name, "int32")
    arguments.integers(rows=rows, trees=sizes.trees, scores=scores, width=sizes.weights, x_row=x.strides[0])
    buffer.line(*arguments.bind())
    buffer.line(f"row = block_index(0) * {THREADS} + thread_index(0)")
    with buffer.block("if row < rows:"):
        with buffer.block("for k in range(scores):"):
            buffer.line(f"store_scalar(out, row * scores + k, const_{dtype}({neutral}, 0))")
        with buffer.block("for tree in range(trees):"):
            buffer.line("at = cast_int64(load_scalar(roots, tree))")
            buffer.line("depth = cast_int64(load_scalar(depths, tree))")
            with buffer.block("for level in range(depth):"):
                buffer.line("word = cast_int64(load_scalar(features, at))")
                number = f"(word & {MISSING - 1})" if missing else "word"
                buffer.line(f"value = load_scalar(x, row * x_row + {number})")
                first = "le(value, load_scalar(splits, at))"
                if missing:
                    first = f"logical_or({first}, logical_and(isnan(value), word >= {MISSING}))"
                buffer.line(f"second = 0 if {first} else 1")
                buffer.line("at = cast_int64(load_scalar(children, 2 * at + second))")
            buffer.line("goal = row * scores + cast_int64(load_scalar(columns, tree))")
            with buffer.block("for k in range(width):"):
                weight = "load_scalar(weights, at * width + k)"
                buffer.line(f"store_scalar(out, goal + k, {join}(load_scalar(out, goal + k), {weight}))")
    form = f"{aggregate}{'_missing' if missing else ''}"
    name, steps, moved = f"tree_ensemble_{form}_kernel", rows * sizes.trees * sizes.depth, x.footprint + out.footprint
    return gpu_launch(name, buffer.lines, arguments, -(-rows // THREADS), THREADS, moved, steps, origin)
