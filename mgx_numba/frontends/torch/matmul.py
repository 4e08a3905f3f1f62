"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.dim import Dim, known_equal
from ...core.shape import common_lens
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .pointwise import scaled
from .reduction import vector_norm
from .registry import register
from .types import Results


@register("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner", "_int_mm")
def matmul(g: AtenBuilder, node: AtenNode, a: Instruction, b: Instruction, *_: object) -> Instruction:
    """Emit the product of matrices, batches of matrices, or vectors."""
    if node.base == "inner" and rank(a) and rank(b) > 1:
        b = g.swap_last(b)
    if node.base == "_int_mm":
        return g.op("quant_dot", a, b)
    wide = g.value(a, node.type), g.value(b, node.type)
    if not (rank(a) and rank(b)):
        return g.pointwise("mul", *wide)
    if rank(a) == rank(b) == 1:
        return g.reduce("reduce_sum", g.pointwise("mul", *wide), [0], keep=False)
    return g.matmul(*wide)


@register("addmm", "baddbmm", "addmv")
def addmm(
    g: AtenBuilder, node: AtenNode, x: Instruction, a: Instruction, b: Instruction, beta: float = 1, alpha: float = 1
) -> Instruction:
    """Emit ``beta * x + alpha * a @ b``."""
    y = scaled(g, node.type, g.matmul(a, b), alpha)
    return y if beta == 0 else g.pointwise("add", y, scaled(g, node.type, x, beta))


@register("cdist", "_cdist_forward")
def cdist(g: AtenBuilder, node: AtenNode, a: Instruction, b: Instruction, p: float = 2.0, *_: object) -> Instruction:
    """Emit the distances of all pairs of rows in the norm of order ``p``."""
    difference = g.pointwise("sub", g.unsqueeze(a, [rank(a) - 1]), g.unsqueeze(b, [rank(b) - 2]))
    return _length(g, node, difference, p)


def _length(g: AtenBuilder, node: AtenNode, x: Instruction, p: float) -> Instruction:
    """Emit the norm of order ``p`` along the last axis; that of no element is 0."""
    return vector_norm(g, node, x, 1 if known_equal(g.lens(x)[-1], 0) else p, [-1])


@register("linalg_inv_ex")
def inverse(g: AtenBuilder, node: AtenNode, x: Instruction, **_: object) -> Results:
    """Emit the inverse of matrices, and for each 1 if there is none, else 0; PyTorch gives the number of a column."""
    y = g.op("inverse", x)

    def is_number(values: Instruction) -> Instruction:
        return g.reduce("reduce_all", g.op("not", g.op("isnan", values)), [-2, -1], keep=False)

    lacking = g.op("logical_and", is_number(x), g.op("not", is_number(y)))
    return [y, g.cast(lacking, Type.int32_type)]


@register("_linalg_det")
def determinant(g: AtenBuilder, node: AtenNode, x: Instruction) -> list[Instruction | None]:
    """Emit the determinant of matrices, without the factors from which PyTorch computes it."""
    if not (node.unused(1) and node.unused(2)):
        raise UnsupportedError("the factors of a determinant are not supported")
    return [g.op("determinant", x), None, None]


@register("linalg_solve_triangular")
def solve_triangular(
    g: AtenBuilder,
    node: AtenNode,
    a: Instruction,
    b: Instruction,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Instruction:
    """Emit ``x`` with ``a @ x == b``, or with ``x @ a == b`` unless ``left``; outer axes broadcast."""
    if not left:
        a, b = g.swap_last(a), g.swap_last(b)
    batch = common_lens(g.lens(a)[:-2], g.lens(b)[:-2])
    a, b = (g.broadcast(x, (*batch, *g.lens(x)[-2:])) for x in (a, b))
    x = g.op("solve_triangular", a, b, upper=upper is left, unit=unitriangular)
    return x if left else g.swap_last(x)


@register("addbmm")
def addbmm(
    g: AtenBuilder, node: AtenNode, x: Instruction, a: Instruction, b: Instruction, *, beta: float = 1, alpha: float = 1
) -> Instruction:
    """Emit ``beta * x + alpha * sum_k a[k] @ b[k]``: one product with the batch along its sum."""
    (n, rows, inner), columns = g.lens(a), g.lens(b)[2]
    left = g.reshape(g.transpose(a, (1, 0, 2)), (rows, n * inner))
    product = g.combined("mul", node.type, g.matmul(left, g.reshape(b, (n * inner, columns))), alpha)
    return product if beta == 0 else g.pointwise("add", g.combined("mul", node.type, x, beta), product)


@register("_trilinear")
def trilinear(
    g: AtenBuilder,
    node: AtenNode,
    a: Instruction,
    b: Instruction,
    c: Instruction,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Instruction:
    """Emit the sum over ``sumdim`` of the product of three tensors, each with axes of length 1 inserted."""
    wide = [g.unsqueeze(x, list(axes)) if axes else x for x, axes in ((a, expand1), (b, expand2), (c, expand3))]
    product = g.pointwise("mul", g.pointwise("mul", wide[0], wide[2]), wide[1])
    return g.reduce("reduce_sum", product, list(sumdim), keep=False)


@register("_pdist_forward")
def pairwise_distances(g: AtenBuilder, node: AtenNode, x: Instruction, p: float = 2.0) -> Instruction:
    """Emit the distance of each pair of rows i < j, pairs in order."""
    rows = g.lens(x)[0]
    if isinstance(rows, Dim):
        raise UnsupportedError("pdist of an open number of rows is not supported")
    g.limit(rows * rows, "pairs of rows")
    ends = (g.op("gather", x, g.literal(places), axis=0) for places in np.triu_indices(rows, 1))
    return _length(g, node, g.op("sub", *ends), p)


@register("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    weights: Instruction,
    offs: Instruction | None = None,
    bias: Instruction | None = None,
    out_dtype: object = None,
) -> Instruction:
    """Emit the product of each row [n, k] with the matrix of its group [groups, k, m]; ``offs`` ends the groups.

    All groups' products are computed for all rows; each row then takes its own group's.
    """
    if rank(x) != 2 or rank(weights) != 3 or offs is None or bias is not None:
        raise UnsupportedError("_grouped_mm supports groups of rows without a bias")
    rows, groups = g.lens(x)[0], g.lens(weights)[0]
    done = g.pointwise("less_or_equal", g.unsqueeze(g.cast(offs, Type.int64_type), [0]), g.iota(rows, 0, 2))
    group = g.reduce("reduce_sum", g.cast(done, Type.int64_type), [1], keep=False)
    every = g.transpose(g.matmul(g.unsqueeze(x, [0]), weights), (1, 0, 2))
    chosen = g.pointwise("equal", g.unsqueeze(group, [1]), g.iota(groups, 1, 2))
    kept = g.pointwise("where", g.unsqueeze(chosen, [2]), every, g.like(0, every))
    return g.reduce("reduce_sum", kept, [1], keep=False)
