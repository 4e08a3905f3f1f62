"""Constant factors absorbed by the weights of convolutions and dots."""

from __future__ import annotations

import numpy as np

from ....core.pages import aligned_array
from ....core.shape import common_lens
from ....parallel import in_parts
from ...constants import compact, constant_array, is_constant
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, constant, op, rule, some
from .linear import all_finite, has_finite, rounds_next

__all__ = ["CONTRACTION_RULES", "along_axis"]

PIECE_BYTES = 256 << 10
"""Of a product that are looked at while they are in a CPU's own cache: 64 MB take 7.8 ms of a Zen 5, 12 in quarters of
this, 6.9 in four times as many, which not every such cache has room for beside the factors, and 8.8 all at once."""


def along_axis(ins: Instruction, axis: int) -> np.ndarray | None:
    """A constant's values along one axis (length 1 when it is uniform), ``None`` if it differs along another one."""
    values = constant_array(ins)
    if values is None:
        return None
    small = compact(values)
    axis %= small.ndim
    if any(n != 1 for k, n in enumerate(small.shape) if k != axis):
        return None
    return small.reshape(-1)


def _scaled(b: RewriteBuilder, weights: Instruction, factors: np.ndarray) -> Instruction | None:
    """Constant ``weights * factors`` (broadcast); ``None`` when it is not finite."""
    values = constant_array(weights)
    if values is None:
        return None
    small = compact(values)
    lens = common_lens(small.shape, factors.shape)
    small, factors = np.broadcast_to(small, lens), np.broadcast_to(factors, lens)
    product = aligned_array(lens, values.dtype)
    rows = max(1, PIECE_BYTES * lens[0] // max(1, product.nbytes))
    finite: list[bool] = []

    def multiply(part: slice) -> None:
        for start in range(part.start, part.stop, rows):
            piece = slice(start, min(start + rows, part.stop))
            with np.errstate(all="ignore"):
                np.multiply(small[piece], factors[piece], product[piece], dtype=factors.dtype, casting="unsafe")
            finite.append(has_finite(product[piece]))

    in_parts(multiply, lens[0], product.nbytes)
    return b.constant(product, weights.shape) if all(finite) else None


def _wide(factors: np.ndarray) -> np.ndarray:
    return factors.astype(np.float32) if factors.dtype.itemsize < 4 else factors


def _weights_check(m: Match) -> str | None:
    if not m.ins.shape.type.is_floating:
        return "integer products may wrap"
    if is_constant(m.x):
        return "everything is constant"
    if rounds_next(m.ins):
        return "the product is rounded to integers"
    return None if all_finite(m.a) else "a factor is not finite"


@rule(
    "mul_conv",
    op("mul", op("convolution", some("x"), constant("w"), bind="conv", once=True), constant("a")),
    _weights_check,
)
def scale_convolution(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, 1)
    if factors is None:
        return "the factor differs along another axis than the channels"
    weights = _scaled(b, m.w, _wide(factors).reshape((-1,) + (1,) * (m.w.shape.ndim - 1)))
    return "weights overflow" if weights is None else b.op(m.conv.op, m.x, weights)  # conv(x, w) * a -> conv(x, w * a)


@rule(
    "mul_conv",
    op("mul", op("convolution_backwards", some("x"), constant("w"), bind="conv", once=True), constant("a")),
    _weights_check,
)
def scale_transposed_convolution(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, 1)
    if factors is None:
        return "the factor differs along another axis than the channels"
    group = m.conv.op.attributes()["group"]
    channels_in, channels_out, *kernel = m.w.shape.lens
    by_group = np.broadcast_to(_wide(factors), (group * channels_out,)).reshape(group, channels_out)
    each = np.repeat(by_group, channels_in // group, axis=0)
    weights = _scaled(b, m.w, each.reshape(channels_in, channels_out, *(1 for _ in kernel)))
    return (
        "weights overflow" if weights is None else b.op(m.conv.op, m.x, weights)
    )  # deconv(x, w) * a -> deconv(x, w * a)


@rule(
    "dot_mul",
    op("mul", op("dot", some("x"), constant("w"), bind="dot", once=True), constant("a")),
    _weights_check,
)
def scale_dot_columns(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, -1)
    if factors is None:
        return "the factor differs along another axis than the columns"
    weights = _scaled(b, m.w, _wide(factors))
    return "weights overflow" if weights is None else b.op("dot", m.x, weights)  # dot(x, w) * a -> dot(x, w * a)


@rule(
    "dot_mul",
    op("mul", op("dot", constant("w"), some("x"), bind="dot", once=True), constant("a")),
    _weights_check,
)
def scale_dot_rows(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, -2)
    if factors is None:
        return "the factor differs along another axis than the rows"
    weights = _scaled(b, m.w, _wide(factors)[:, None])
    return "weights overflow" if weights is None else b.op("dot", weights, m.x)  # dot(w, x) * a -> dot(w * a, x)


@rule(
    "mul_dot",
    op("dot", op("mul", some("x"), constant("a"), once=True), constant("w")),
    _weights_check,
)
def scaled_dot_operand(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, -1)
    if factors is None:
        return "the factor differs along another axis than the inner one"
    weights = _scaled(b, m.w, _wide(factors)[:, None])
    return "weights overflow" if weights is None else b.op("dot", m.x, weights)  # dot(x * a, w) -> dot(x, a * w)


@rule(
    "mul_conv",
    op("convolution", op("mul", some("x"), constant("a"), once=True), constant("w")),
    _weights_check,
)
def scaled_convolution_operand(m: Match, b: RewriteBuilder) -> object:
    factors = along_axis(m.a, 1)
    if factors is None:
        return "the factor differs along another axis than the channels"
    if m.ins.shape.type.size < 4:
        return "weights would be rounded once more"
    rows, inside, *kernel = m.w.shape.lens
    group = m.ins.op.attributes()["group"]
    by_group = np.broadcast_to(_wide(factors), (group * inside,)).reshape(group, 1, inside)
    each = np.broadcast_to(by_group, (group, rows // group, inside)).reshape(rows, inside, *(1 for _ in kernel))
    weights = _scaled(b, m.w, each)
    return "weights overflow" if weights is None else b.op(m.ins.op, m.x, weights)  # conv(x * a, w) -> conv(x, w * a)


@rule(
    "add_convs",
    op(
        "add",
        op("convolution", some("x"), constant("v"), bind="left", once=True),
        op("convolution", some("x"), constant("w"), bind="right", once=True),
    ),
)
def add_convolutions(m: Match, b: RewriteBuilder) -> object:
    if m.left.op != m.right.op or m.v.shape.lens != m.w.shape.lens:
        return "the convolutions differ in more than weights"
    return b.op(m.left.op, m.x, b.op("add", m.v, m.w))  # conv(x, v) + conv(x, w) -> conv(x, v + w)


@rule("dot_broadcast", op("dot", op("multibroadcast", some("x"), bind="a"), op("multibroadcast", some("y"), bind="b")))
def dot_of_broadcasts(m: Match, b: RewriteBuilder) -> object:
    """``dot(spread(x), spread(y)) -> spread(dot(x, y))`` along batch axes on which both repeat."""
    outer = m.ins.shape.lens[:-2]
    small = list(outer)
    for axis in range(len(outer)):
        both = all(
            axis < len(outer) + 2 - s.shape.ndim or s.shape.lens[axis - (len(outer) + 2 - s.shape.ndim)] == 1
            for s in (m.x, m.y)
        )
        if both:
            small[axis] = 1
    if tuple(small) == outer:
        return "no batch axis repeats in both operands"
    left = b.broadcast(m.x, (*small, *m.a.shape.lens[-2:]))
    right = b.broadcast(m.y, (*small, *m.b.shape.lens[-2:]))
    return b.broadcast(b.op(m.ins.op, left, right), m.ins.shape.lens)


CONTRACTION_RULES = (
    scale_convolution,
    scale_transposed_convolution,
    scale_dot_columns,
    scale_dot_rows,
    scaled_dot_operand,
    scaled_convolution_operand,
    add_convolutions,
    dot_of_broadcasts,
)
