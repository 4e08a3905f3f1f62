"""The lowering rule of ensembles of decision trees, for all targets."""

from __future__ import annotations

from collections.abc import Callable

from ...codegen.launch import Launch
from ...codegen.problems.tree_tables import TreeTables
from ...core.dim import known_equal, known_in, known_less, maximum
from ...core.shape import row_major_strides
from ...graph.instruction import Instruction
from ...ops.tree_ensemble import TreeEnsemble, wrong_tables
from .buffers import View
from .lowering import Lowering
from .rules import Lower

NAMES = ("x", "features", "splits", "children", "weights", "roots", "columns", "depths")
"""Names of the inputs of ``tree_ensemble``, in order."""
MOST = 1 << 31
"""Number of elements that an int32 index can address."""
FEWEST_ROWS_APART = 64
"""Rows of x that a kernel may gather from at once: offsets over so many rows must fit int32."""


def tree_operands(low: Lowering, ins: Instruction) -> tuple[TreeTables, dict[str, View]] | None:
    """Return the sizes of the tables, and the operands by name; None if the instruction became a fallback step.

    Kernels do not check the indices in the tables, so this function checks them.
    """
    op = ins.operator(TreeEnsemble)
    tables = [low.constant_value(i) for i in ins.inputs[1:]]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        low.host(ins, "tables of nodes or trees are computed")
        return None
    features, _, _, weights, roots, _, depths = known
    wrong = wrong_tables(op, known)
    x = low.input(ins, 0)
    if wrong or any(known_in(n, 0) for n in x.lens) or not roots.size:
        low.host(ins, wrong or "there are no rows or no trees")
        return None
    if not known_equal(x.strides[1], 1):
        x = low.materialized(x, row_major_strides(x.lens), ins)
    reached = maximum(2 * features.size, weights.size, FEWEST_ROWS_APART * (x.strides[0] + x.lens[1]))
    if not known_less(reached, MOST):
        low.host(ins, "indices into tables leave 32 bits")
        return None
    views = [low.input(ins, k) for k in range(1, len(NAMES))]
    plain = [low.materialized(view, row_major_strides(view.lens), ins) for view in views]
    sizes = TreeTables(features.size, roots.size, weights.shape[1], int(depths.max()))
    return sizes, dict(zip(NAMES, (x, *plain)))


def tree_rule(planner: Callable[..., Launch], *, by_threads: bool) -> Lower:
    """Return the lowering of an ensemble to one kernel, or to a fallback step.

    Args:
        planner: `trees_launch` of a back end.
        by_threads: whether it takes the number of threads.
    """

    def lower_tree_ensemble(low: Lowering, ins: Instruction) -> None:
        op, found = ins.operator(TreeEnsemble), tree_operands(low, ins)
        if found is None:
            return
        (sizes, operands), out = found, low.output(ins)
        how = sizes, op.aggregate, op.missing, *((low.threads,) if by_threads else ()), low.origin(ins)
        solution = low.solve(planner, operands["x"].tensor, out.tensor, *how)
        low.launch_all(solution, {**operands, "out": out}, ins)

    return lower_tree_ensemble
