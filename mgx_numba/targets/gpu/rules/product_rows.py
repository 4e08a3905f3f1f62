"""Rows of products: merged axes, and the alignment of operands."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from ....codegen.gpu.contraction.gpu_contraction import (
    VECTOR_BYTES,
)
from ....codegen.problems.gemm import GemmProblem
from ....codegen.space import collapse
from ....core.dim import (
    common_divisor,
    known_equal,
    known_in,
    known_less,
    typical,
)
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.contraction_problem import (
    Contraction,
)
from ...lowering.lowering import Lowering


def planes_as_rows(
    problem: GemmProblem, places: tuple[tuple[int, ...], ...]
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...]]:
    """Merge batch axes into the rows of a product, if the right operand is broadcast over them.

    Axes merge if the left operand, the result and every epilogue operand have one constant stride over them. If several
    groups of axes can merge, the longest group becomes the rows, because only many rows fill the tiles.

    Args:
        problem: the product.
        places: strides of each epilogue operand, over the batch axes and the rows.
    """
    if not problem.batch or problem.blocks is not None or problem.prologue is not None:
        return problem, places
    return all_rows(problem, places)


def all_rows(
    problem: GemmProblem, places: tuple[tuple[int, ...], ...]
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...]]:
    """Return the product with batch axes merged with the rows, or with each other, where strides allow it."""
    rank = len(problem.batch)
    b = (*problem.b_strides[:rank], 0)
    walked = [problem.out_strides, problem.a_strides[:-1], b, *(own for own in places if own)]
    if not rank or any(len(own) != rank + 1 for own in walked):
        return problem, places
    space = collapse((*problem.batch, problem.m), walked, order_by=0)
    shared = [k for k in range(space.rank) if known_in(space.strides[2][k], 0)]
    if not shared:
        return problem, places
    rows = max(shared, key=lambda k: (typical(space.lens[k]), k))
    order = [*(k for k in range(space.rank) if k != rows), rows]
    lens = [space.lens[k] for k in order]
    out, a, b, *rest = (tuple(own[k] for k in order) for own in space.strides)
    left = iter(rest)
    return replace(
        problem, m=lens[-1], batch=tuple(lens[:-1]), a_strides=(*a, problem.a_strides[-1]),
        b_strides=(*b[:-1], *problem.b_strides[rank:]), out_strides=out,
    ), tuple(next(left) if own else () for own in places)  # fmt: skip


def alignment(fused: Contraction, operands: dict[str, View]) -> int:
    """Return the common alignment in bytes, at most that of a vector, of the result and the epilogue's operands."""
    offsets = [operands["out"].byte_offset, *(view.byte_offset for view in fused.extras)]
    return gcd(VECTOR_BYTES, *map(common_divisor, offsets))


def aligned(low: Lowering, ins: Instruction, view: View) -> View:
    """Return the view if it is aligned to vectors, else an aligned copy.

    The copy has the view's strides if the view covers at least half of its memory span; otherwise it is dense, with
    the axes in the order of the view's strides. Broadcast axes keep stride 0.
    """
    if known_equal(view.byte_offset % VECTOR_BYTES, 0):
        return view
    repeated = [known_in(s, 0) for s in view.strides]
    if not any(repeated) and not known_less(2 * view.shape.elements, view.shape.element_space):
        return low.copied(view, view.strides, ins)
    once = view.with_shape(Shape(view.type, [1 if r else n for r, n in zip(repeated, view.lens)], view.strides))
    order = sorted(range(len(view.lens)), key=lambda axis: typical(view.strides[axis]), reverse=True)
    dense = Shape.from_permutation(view.type, once.lens, order)
    copied = low.copied(once, dense.strides, ins)
    strides = [0 if r else s for r, s in zip(repeated, dense.strides)]
    return copied.with_shape(Shape(view.type, view.lens, strides))
