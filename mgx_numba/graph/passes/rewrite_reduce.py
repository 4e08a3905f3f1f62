"""Decompose softmax, log-softmax and products with one column into reductions and pointwise operations, for fusion;
merge and remove reductions."""

from __future__ import annotations

from math import prod

from ...core.dim import hint, known_equal
from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import rule_pass

SHORT_ROW = 16
"""Most elements of a sum that are left to a product. Zen 4, us as a product and as a reduction, then both with AVX2: 64
of 1x16 by 16x64 14, 14, 15, 34, 64 of 1x4 by 4x100 17, 21, 18, 31, 32 of 1x20 by 20x33 9, 6, 21, 5."""
SELECTIONS = "reduce_max reduce_min reduce_any reduce_all"
SUMS = "reduce_sum reduce_mean reduce_prod"


def _shifted(m: Match, b: RewriteBuilder) -> tuple[Instruction, Instruction, int]:
    """Return ``x - max(x)`` and ``x``, both in softmax's compute type, and the axis."""
    axis = int(m.ins.op.attributes()["axis"]) % m.x.shape.ndim
    x = b.convert(m.x, m.x.shape.type.compute)
    top = b.op("reduce_max", x, axes=(axis,))
    return b.op("sub", x, b.broadcast(top, x.shape.lens)), x, axis


def _softmax_check(m: Match) -> str | None:
    return "no elements" if known_equal(m.ins.shape.elements, 0) else None


def _exponentials(m: Match, b: RewriteBuilder) -> tuple[Instruction, Instruction]:
    """Return ``exp(x - max(x))`` and its sum."""
    shifted, _, axis = _shifted(m, b)
    exponentials = b.op("exp", shifted)
    return exponentials, b.op("reduce_sum", exponentials, axes=(axis,))


@rule("softmax", op("softmax", some("x")), _softmax_check, exact=False)
def expand_softmax_with_reciprocal(m: Match, b: RewriteBuilder) -> object:
    exponentials, total = _exponentials(m, b)
    # The sum is at least 1, that of the greatest element, or NaN: it has a normal reciprocal.
    product = b.op("mul", exponentials, b.broadcast(b.op("recip", total), m.x.shape.lens))
    return b.convert(product, m.ins.shape.type)  # softmax(x) -> exp(x - max) * (1 / sum(exp(x - max)))


@rule("softmax", op("softmax", some("x")), _softmax_check, exact=True)
def expand_softmax(m: Match, b: RewriteBuilder) -> object:
    exponentials, total = _exponentials(m, b)
    quotient = b.op("div", exponentials, b.broadcast(total, m.x.shape.lens))
    return b.convert(quotient, m.ins.shape.type)  # softmax(x) -> exp(x - max) / sum(exp(x - max))


@rule("logsoftmax", op("logsoftmax", some("x")), _softmax_check, exact=True)
def expand_log_softmax(m: Match, b: RewriteBuilder) -> object:
    shifted, x, axis = _shifted(m, b)
    total = b.op("reduce_sum", b.op("exp", shifted), axes=(axis,))
    # logsoftmax(x) -> (x - max) - log(sum(exp(x - max)))
    return b.convert(b.op("sub", shifted, b.broadcast(b.op("log", total), x.shape.lens)), m.ins.shape.type)


def _merged(m: Match, b: RewriteBuilder) -> Instruction | str:
    """Return one reduction over the axes of both nested reductions, or the reason why they cannot be merged."""
    if m.inner.name != m.ins.name:
        return "different reductions"
    outer, inner = m.ins.op.attributes()["axes"], m.inner.op.attributes()["axes"]
    if not outer or not inner or m.ins.shape.type is not m.x.shape.type:
        return "the axes are not listed"
    if not m.x.shape.type.is_floating and m.ins.name == "reduce_mean":
        return "integer means truncate"
    return b.op(m.ins.name, m.x, axes=tuple(sorted({*outer, *inner})))


# max[0](max[1](x)) -> max[0, 1](x), sum[0](sum[1](x)) -> sum[0, 1](x)
MERGED = tuple(
    rule("nested_reduce", op(names, op(names, some("x"), bind="inner", once=True)), exact=exact)(_merged)
    for names, exact in ((SELECTIONS, True), (SUMS, False))
)


@rule("reduce_one", op("reduce_sum reduce_mean reduce_max reduce_min reduce_prod", some("x")), exact=True)
def reduce_single_elements(m: Match, b: RewriteBuilder) -> object:
    axes = m.ins.op.attributes()["axes"] or tuple(range(m.x.shape.ndim))
    if not known_equal(prod(m.x.shape.lens[axis] for axis in axes), 1):
        return None
    return m.x  # sum over axes of length 1 -> x


def _not_summed(m: Match) -> str | None:
    """Return the reason why a product is not computed as a reduction, or None."""
    if m.options.capabilities is None or not m.options.capabilities.sums_columns:
        return "a product takes less time on the target"
    if not m.ins.shape.type == m.x.shape.type == m.w.shape.type or m.ins.shape.type not in _WIDE:
        return "the terms would be rounded once more"
    return None


def _turned(b: RewriteBuilder, x: Instruction) -> Instruction:
    """Return ``x`` with its last two axes exchanged."""
    rank = x.shape.ndim
    return b.op("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


@rule("dot_row", op("dot", some("x"), some("w")), _not_summed, exact=True)
def expand_row_products(m: Match, b: RewriteBuilder) -> object:
    """``dot(row, transpose(w)) -> sum(row * w)`` for a batch, which reads ``w`` in place; a product copies it first.

    Zen 4, one thread, us as a product and as a reduction, then both with AVX2: 64 of 1x673 by 673x16 199, 55, 144, 56,
    64 of 1x184 by 184x48 149, 37, 108, 49, 8 of 1x64 by 64x512 52, 21, 53, 21.
    """
    *batch, depth, _ = m.w.shape.lens
    if not known_equal(m.x.shape.lens[-2], 1) or known_equal(prod(batch), 1) or hint(depth) <= SHORT_ROW:
        return "there are several rows, or one product, or sums are short"
    if is_constant(m.w) or m.w.shape.broadcasted or not known_equal(m.w.shape.strides[-2], 1):
        return "the right-hand side is constant, repeated, or not transposed"
    w = _turned(b, m.w)
    total = b.op("reduce_sum", b.op("mul", b.broadcast(m.x, w.shape.lens), w), axes=(w.shape.ndim - 1,))
    return _turned(b, total)


@rule("dot_column", op("dot", some("x"), some("w")), _not_summed, exact=True)
def expand_column_products(m: Match, b: RewriteBuilder) -> object:
    """``dot(x, column) -> sum(x * row)``, which reads whole rows; a register tile has several columns.

    If one ``x`` is multiplied by a batch of columns, they are the rows of one product: ``dot(columns, transpose(x))``.
    Zen 4, one thread: 768x768 by 768x1 takes 33 us and 77 as a product, 5000x64 by 64x1 20 and 46; 512x512 by a batch
    of 16 columns takes 77 us as one product, and 570 as 16 products.
    """
    if not known_equal(m.w.shape.lens[-1], 1):
        return "there are several columns"
    *batch, rows, depth = m.x.shape.lens
    rank = m.w.shape.ndim
    if m.x.name == "multibroadcast" and not known_equal(prod(batch), 1):
        (x,) = m.x.inputs
        if not known_equal(x.shape.elements, rows * depth):
            return "some matrices of the left-hand side are repeated"
        left, right = b.reshape(m.w, (prod(batch), depth)), b.reshape(x, (rows, depth))
        product = b.op("dot", left, b.op("transpose", right, permutation=(1, 0)))
        return b.reshape(product, m.ins.shape.lens)
    row = b.broadcast(_turned(b, m.w), m.x.shape.lens)
    return b.op("reduce_sum", b.op("mul", m.x, row), axes=(rank - 1,))


_WIDE = (Type.float_type, Type.double_type)


RewriteReduce = rule_pass(
    "rewrite_reduce",
    expand_row_products,
    expand_column_products,
    expand_softmax_with_reciprocal,
    expand_softmax,
    expand_log_softmax,
    *MERGED,
    reduce_single_elements,
)
