"""Kernels for ensembles of decision trees.

The lanes of a vector are rows that descend the same tree. Where there are few rows, the lanes are trees that the same
row descends. Several vectors are in flight, because each step waits for gathers. A block of rows descends one tree
after the other, so that the nodes of a tree stay in the L1 cache. Both forms add scores in the order of the trees.
"""

from __future__ import annotations

from ....core.dim import ceil_div, less_equal, maximum, minimum, preferred
from ....core.types import Type
from ....ops.tree_ensemble import AGGREGATES, MISSING
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...problems.tree_tables import TreeTables
from ...statements import for_tasks, indent, kernel_text
from .. import host
from ..kernel import cpu_kernel

STREAMS = 4
"""Vectors in flight."""
ROWS = 256
"""Largest number of rows in a block: 30 float32 features take 30 KiB, which fit L2 beside a tree of 1,000 nodes."""
CYCLES = 40
"""Estimated memory traffic (bytes) of one row's step down a tree: gathers of a node and of a feature."""


def trees_launch(
    x: Tensor, out: Tensor, sizes: TreeTables, aggregate: str, missing: bool, threads: int, origin: str = ""
) -> Launch:
    """Return the launch for `TreeEnsemble`; operands have the names of the operator's inputs, and ``out``.

    The innermost stride of ``x`` is 1, ``out`` is packed, and all indices into tables fit int32.
    """
    rows, (scores, dtype) = x.lens[0], (out.lens[1], "float64" if x.type is Type.double_type else "float32")
    lanes = host.lanes(dtype)
    by_rows = preferred(less_equal(lanes * STREAMS, 2 * rows))  # with fewer rows most lanes would be idle
    arguments = Arguments()
    for name in ("x", "splits", "weights", "out"):
        arguments.pointer(name, name, dtype)
    for name in ("features", "children", "roots", "columns", "depths"):
        arguments.pointer(name, name, "int32")
    step = lanes * STREAMS
    block = maximum(minimum(ROWS, ceil_div(ceil_div(rows, threads), step) * step), 1) if by_rows else 1
    arguments.integers(
        rows=rows, trees=sizes.trees, scores=scores, width=sizes.weights, x_row=x.strides[0], block=block,
    )  # fmt: skip
    writer = _Writer(dtype, lanes, aggregate, missing, scores == 1)
    task = writer.down_a_tree() if by_rows else writer.down_trees()
    form = f"{'rows' if by_rows else 'trees'}_{aggregate}{'_missing' if missing else ''}"
    source = cpu_kernel(f"tree_ensemble_{form}_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]), origin)
    steps = rows * sizes.trees * sizes.depth
    return Launch(source, arguments.values, TaskRange(ceil_div(rows, block)), steps, CYCLES * steps)


class _Writer:
    """Generator of the statements of one task."""

    def __init__(self, dtype: str, lanes: int, aggregate: str, missing: bool, single: bool) -> None:
        self.dtype, self.lanes, self.missing, self.single = dtype, lanes, missing, single
        self.join = {"sum": "add"}.get(aggregate, aggregate)
        neutral = AGGREGATES[aggregate][1]
        self.neutral = {0.0: "0", float("inf"): "INF", float("-inf"): "-INF"}[neutral]

    def down_a_tree(self) -> list[str]:
        """Return the statements that evaluate all trees for a block of rows, one row per lane."""
        lanes, every = self.lanes, range(STREAMS)
        own = [
            line
            for u in every
            for line in (
                f"at{u} = splat(root, {lanes})",
                f"left{u} = imax(imin(last - row - {u * lanes}, {lanes}), 0)",
                f"lane{u} = min(add(iota_int32({lanes}), {u * lanes}), cast_int32(last - 1 - row))",
                f"base{u} = mul(lane{u}, cast_int32(x_row))",
            )
        ]
        return [
            "start = task * block",
            "last = imin(rows, start + block)",
            *self._begin("start * scores", "last * scores"),
            "for tree in range(trees):",
            "    root = load_scalar(roots, tree)",
            "    column = cast_int64(load_scalar(columns, tree))",
            "    depth = cast_int64(load_scalar(depths, tree))",
            f"    for row in range(start, last, {lanes * STREAMS}):",
            "        here = offset(x, row * x_row)",
            *indent(own, 2),
            *indent(self._walk([f"base{u}" for u in every]), 2),
            "        for k in range(width):",
            *indent([line for u in every for line in self._add(u)], 3),
        ]

    def down_trees(self) -> list[str]:
        """Return the statements that evaluate all trees for one row, one tree per lane."""
        lanes, every = self.lanes, range(STREAMS)
        own = [
            line
            for u in every
            for line in (
                f"left{u} = imax(imin(trees - tree - {u * lanes}, {lanes}), 0)",
                f"at{u} = load_tail(roots, tree + {u * lanes}, left{u}, 0, {lanes})",
                f"deep{u} = load_tail(depths, tree + {u * lanes}, left{u}, 0, {lanes})",
            )
        ]
        deepest = "deep0"
        for u in every[1:]:
            deepest = f"max({deepest}, deep{u})"
        added = [
            "for i in range(count):",
            "    leaf = cast_int64(load_scalar(leaves, i)) * width",
            "    goal = task * scores + cast_int64(load_scalar(columns, tree + i))",
            "    for k in range(width):",
            f"        sum_ = {self.join}(load_scalar(out, goal + k), load_scalar(weights, leaf + k))",
            "        store_scalar(out, goal + k, sum_)",
        ]
        return [
            *self._begin("task * scores", "(task + 1) * scores"),
            f"leaves = local_int32({STREAMS * lanes})",
            "here = offset(x, task * x_row)",
            f"for tree in range(0, trees, {lanes * STREAMS}):",
            *indent(own),
            f"    depth = cast_int64(reduce_max({deepest}))",
            *indent(self._walk([""] * STREAMS)),
            *indent([f"store(leaves, {u * lanes}, at{u})" for u in every]),
            f"    count = imin(trees - tree, {lanes * STREAMS})",
            *indent(added),
        ]

    def _begin(self, first: str, last: str) -> list[str]:
        """Return the statements that set elements ``first`` to ``last`` of ``out`` to the neutral score."""
        lanes = self.lanes
        return [
            f"for i in range({first}, {last}, {lanes}):",
            f"    store_tail(out, i, const_{self.dtype}({self.neutral}, {lanes}), imin({last} - i, {lanes}))",
        ]

    def _walk(self, bases: list[str]) -> list[str]:
        """Return the statements that move each ``at<u>`` down ``depth`` levels, to leaves."""
        lanes, lines = self.lanes, []
        for u, _ in enumerate(bases):
            lines += [f"word{u} = gather(features, at{u})", f"split{u} = gather(splits, at{u})"]
        for u, base in enumerate(bases):
            number = f"bitwise_and(word{u}, {MISSING - 1})" if self.missing else f"word{u}"
            lines.append(f"value{u} = gather(here, {f'add({base}, {number})' if base else number})")
        for u, _ in enumerate(bases):
            first = f"le(value{u}, split{u})"
            if self.missing:
                flagged = f"ge(word{u}, {MISSING})"
                first = f"logical_or({first}, logical_and(isnan(value{u}), {flagged}))"
            other = f"where({first}, const_int32(0, {lanes}), const_int32(1, {lanes}))"
            lines.append(f"at{u} = gather(children, add(add(at{u}, at{u}), {other}))")
        return ["for level in range(depth):", *indent(lines)]

    def _add(self, u: int) -> list[str]:
        """Return the statements that join weight ``k`` of the leaves ``at<u>`` to the scores of stream ``u``."""
        lanes = self.lanes
        weight = f"gather(weights, add(mul(at{u}, cast_int32(width)), cast_int32(k)))"
        place = f"(row + {u * lanes}) * scores + column + k"
        if self.single:
            old = f"load_tail(out, {place}, left{u}, 0, {lanes})"
            return [f"store_tail(out, {place}, {self.join}({old}, {weight}), left{u})"]
        old = f"load_strided_tail(out, {place}, scores, left{u}, 0, {lanes})"
        return [f"store_strided_tail(out, {place}, scores, {self.join}({old}, {weight}), left{u})"]
