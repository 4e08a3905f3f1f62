"""Constant factors absorbed by the weights of convolutions and dots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....core.dim import known_equal, known_same
from ....core.pages import aligned_array
from ....core.shape import common_lens
from ....parallel import in_parts
from ...constants import compact, constant_array, is_constant
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, Operation, Pattern, RewriteRule, constant, op, rule, some
from .merging import WIDE, all_finite, is_kept, rounds_next

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


def _scaled(b: RewriteBuilder, weights: Instruction, factors: np.ndarray) -> Instruction | str:
    """Constant ``weights * factors`` (broadcast), or why it must not take their place."""
    values = constant_array(weights)
    if values is None:
        return "the weights are no literal"
    small = compact(values)
    lens = common_lens(small.shape, factors.shape)
    small, factors = np.broadcast_to(small, lens), np.broadcast_to(factors, lens)
    product = aligned_array(lens, values.dtype)
    rows = max(1, PIECE_BYTES * lens[0] // max(1, product.nbytes))
    kept: list[bool] = []

    def multiply(part: slice) -> None:
        for start in range(part.start, part.stop, rows):
            piece = slice(start, min(start + rows, part.stop))
            with np.errstate(all="ignore"):
                np.multiply(small[piece], factors[piece], product[piece])
            kept.append(is_kept(product[piece], small[piece], factors[piece]))

    in_parts(multiply, lens[0], product.nbytes)
    return b.constant(product, weights.shape) if all(kept) else "weights overflow or lose bits"


def _weights_check(m: Match) -> str | None:
    if not m.ins.shape.type.is_floating:
        return "integer products may wrap"
    if m.ins.shape.type not in WIDE:
        return "weights would be rounded once more"
    if is_constant(m.x):
        return "everything is constant"
    if rounds_next(m.ins):
        return "the product is rounded to integers"
    return None if all_finite(m.a) else "a factor is not finite"


def _absorbed(
    name: str, pattern: Operation, axis: int, along: str, factors_of: Callable[[Match, np.ndarray], np.ndarray]
) -> RewriteRule:
    """Return the rule that scales the constant weights ``w`` of a contraction by a constant factor ``a``.

    Args:
        name: the rule's name.
        pattern: the product with ``x``, ``w`` and ``a``; ``by`` is the contraction.
        axis: the axis along which the factor may differ.
        along: the name of this axis, for the refusal.
        factors_of: returns the factors along the axis, broadcastable to the weights.
    """

    @rule(name, pattern, _weights_check, exact=False)
    def scale_weights(m: Match, b: RewriteBuilder) -> object:
        factors = along_axis(m.a, axis)
        if factors is None:
            return f"the factor differs along another axis than the {along}"
        weights = _scaled(b, m.w, factors_of(m, factors))
        if isinstance(weights, str):
            return weights
        return b.op(m.by.op, *(weights if i is m.w else m.x for i in m.by.inputs))

    return scale_weights


def _by_output_channel(m: Match, factors: np.ndarray) -> np.ndarray:
    return factors.reshape((-1,) + (1,) * (m.w.shape.ndim - 1))


def _by_channel_of_group(m: Match, factors: np.ndarray) -> np.ndarray:
    group = m.by.op.attributes()["group"]
    channels_in, channels_out, *kernel = m.w.shape.lens
    by_group = np.broadcast_to(factors, (group * channels_out,)).reshape(group, channels_out)
    each = np.repeat(by_group, channels_in // group, axis=0)
    return each.reshape(channels_in, channels_out, *(1 for _ in kernel))


def _by_input_channel(m: Match, factors: np.ndarray) -> np.ndarray:
    rows, inside, *kernel = m.w.shape.lens
    group = m.by.op.attributes()["group"]
    by_group = np.broadcast_to(factors, (group * inside,)).reshape(group, 1, inside)
    return np.broadcast_to(by_group, (group, rows // group, inside)).reshape(rows, inside, *(1 for _ in kernel))


def _by_row(m: Match, factors: np.ndarray) -> np.ndarray:
    return factors[:, None]


_SCALED = op("mul", some("x"), constant("a"), once=True)


def _times_a(name: str, *operands: Pattern) -> Operation:
    return op("mul", op(name, *operands, bind="by", once=True), constant("a"))


ABSORBING = (
    # conv(x, w) * a -> conv(x, w * a)
    _absorbed("mul_conv", _times_a("convolution", some("x"), constant("w")), 1, "channels", _by_output_channel),
    # deconv(x, w) * a -> deconv(x, w * a)
    _absorbed(
        "mul_conv", _times_a("convolution_backwards", some("x"), constant("w")), 1, "channels", _by_channel_of_group
    ),
    # dot(x, w) * a -> dot(x, w * a)
    _absorbed("dot_mul", _times_a("dot", some("x"), constant("w")), -1, "columns", lambda m, factors: factors),
    # dot(w, x) * a -> dot(w * a, x)
    _absorbed("dot_mul", _times_a("dot", constant("w"), some("x")), -2, "rows", _by_row),
    # dot(x * a, w) -> dot(x, a * w)
    _absorbed("mul_dot", op("dot", _SCALED, constant("w"), bind="by"), -1, "inner one", _by_row),
    # conv(x * a, w) -> conv(x, w * a)
    _absorbed("mul_conv", op("convolution", _SCALED, constant("w"), bind="by"), 1, "channels", _by_input_channel),
)


@rule(
    "add_convs",
    op(
        "add",
        op("convolution", some("x"), constant("v"), bind="left", once=True),
        op("convolution", some("x"), constant("w"), bind="right", once=True),
    ),
    exact=False,
)
def add_convolutions(m: Match, b: RewriteBuilder) -> object:
    if m.left.op != m.right.op or not known_same(m.v.shape.lens, m.w.shape.lens):
        return "the convolutions differ in more than weights"
    if m.ins.shape.type not in WIDE:
        return "weights would be rounded once more"
    weights = b.op("add", m.v, m.w)
    # conv(x, v) + conv(x, w) -> conv(x, v + w)
    return b.op(m.left.op, m.x, weights) if all_finite(weights) else "weights overflow"


@rule(
    "dot_broadcast",
    op("dot", op("multibroadcast", some("x"), bind="a"), op("multibroadcast", some("y"), bind="b")),
    exact=True,
)
def dot_of_broadcasts(m: Match, b: RewriteBuilder) -> object:
    """``dot(spread(x), spread(y)) -> spread(dot(x, y))`` along batch axes on which both repeat."""
    outer = m.ins.shape.lens[:-2]
    small = list(outer)
    for axis in range(len(outer)):
        both = all(
            axis < len(outer) + 2 - s.shape.ndim or known_equal(s.shape.lens[axis - (len(outer) + 2 - s.shape.ndim)], 1)
            for s in (m.x, m.y)
        )
        if both:
            small[axis] = 1
    if known_same(small, outer):
        return "no batch axis repeats in both operands"
    left = b.broadcast(m.x, (*small, *m.a.shape.lens[-2:]))
    right = b.broadcast(m.y, (*small, *m.b.shape.lens[-2:]))
    return b.broadcast(b.op(m.ins.op, left, right), m.ins.shape.lens)


@rule("dot_outer", op("dot", some("x"), some("y")), exact=True)
def outer_products(m: Match, b: RewriteBuilder) -> object:
    """``dot(column, row) -> column * row``, which is fused with its neighbours and has no sum."""
    if not known_equal(m.x.shape.lens[-1], 1):
        return "the product has a sum"
    if not m.ins.shape.type == m.x.shape.type == m.y.shape.type:
        return "the result has another type"
    lens = m.ins.shape.lens
    return b.op("mul", b.broadcast(m.x, lens), b.broadcast(m.y, lens))


CONTRACTION_RULES = (
    *ABSORBING,
    add_convolutions,
    dot_of_broadcasts,
    outer_products,
)
