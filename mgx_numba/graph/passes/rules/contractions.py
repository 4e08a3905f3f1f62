"""Constant factors absorbed by the weights of convolutions and dots."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....core.dim import known_equal
from ....core.pages import aligned_array
from ....core.shape import common_lens
from ....ops.window import PaddingMode
from ....parallel import in_parts
from ...constants import compact, constant_array, is_constant
from ...instruction import Instruction
from ..build import RewriteBuilder
from ..match import Match, Operation, Pattern, RewriteRule, constant, op, rule, some
from .merging import WIDE, all_finite, has_finite, is_kept, rounds_next

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
    """Return the constant ``weights * factors`` (broadcast), or why the product must not replace the weights."""
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
    """``conv(x, v) + conv(x, w) -> conv(x, v + w)``; taps of a smaller kernel are added to those of a larger one."""
    pair = [(m.left, m.v), (m.right, m.w)]
    (wide, wide_weights), (small, small_weights) = sorted(pair, key=lambda one: -math.prod(one[1].shape.lens[2:]))
    weights = constant_array(small_weights)
    if weights is None:
        return "the weights are no literal"
    attributes = wide.op.attributes(), small.op.attributes()
    if any(attributes[0][name] != attributes[1][name] for name in ("stride", "group")):
        return "the convolutions have different strides or groups"
    return _with_taps(m, b, wide, wide_weights, weights, small)


@rule(
    "add_conv_input",
    op("add", op("convolution", some("x"), constant("w"), bind="by", once=True), op("mul", some("x"), constant("a"))),
    exact=False,
)
def add_scaled_input(m: Match, b: RewriteBuilder) -> object:
    """``conv(x, w) + x * a -> conv(x, w + a)``, with ``a`` in the tap of each channel by itself."""
    factors = along_axis(m.a, 1)
    if factors is None:
        return "the factor differs along another axis than the channels"
    attributes, (channels, inside, *kernel) = m.by.op.attributes(), m.w.shape.lens
    if any(n > 1 for n in attributes["stride"]) or channels != attributes["group"] * inside:
        return "the convolution has a stride, or another number of output channels"
    weights = np.zeros((channels, inside, *(1 for _ in kernel)), m.w.shape.type.numpy)
    weights[np.arange(channels), np.arange(channels) % inside] = factors.reshape(-1, *(1 for _ in kernel))
    return _with_taps(m, b, m.by, m.w, weights, None)


def _with_taps(
    m: Match, b: RewriteBuilder, wide: Instruction, weights: Instruction, added: np.ndarray, small: Instruction | None
) -> Instruction | str:
    """Return the convolution ``wide`` with ``added`` weights of a smaller window, or why they do not fit.

    Args:
        small: the convolution with the added weights; None if they are one tap over an input without padding.
    """
    if m.ins.shape.type not in WIDE:
        return "weights would be rounded once more"
    values, convs = constant_array(weights), [wide, *([small] if small else [])]
    canonical = [conv.op.normalized([m.x.shape, conv.inputs[1].shape]).attributes() for conv in convs]
    if values is None or any(of["padding_mode"] is not PaddingMode.default_ for of in canonical):
        return "the weights are no literal, or the padding is not known"
    total, places = np.array(values), [slice(None), slice(None)]
    for axis, step in enumerate(canonical[0]["dilation"]):
        taps, window = added.shape[2 + axis], values.shape[2 + axis]
        if small and taps > 1 and canonical[1]["dilation"][axis] != step:
            return "the windows have different dilations"
        start, rest = divmod(canonical[0]["padding"][axis] - (canonical[1]["padding"][axis] if small else 0), step)
        if rest or start < 0 or start + taps > window:
            return "the smaller window is not within the larger one"
        places.append(slice(start, start + taps))
    total[tuple(places)] += added
    if not has_finite(total):
        return "weights overflow"
    return b.op(wide.op, m.x, b.literal(total))


@rule("dot_outer", op("dot", some("x"), some("y")), exact=True)
def outer_products(m: Match, b: RewriteBuilder) -> object:
    """``dot(column, row) -> column * row``, which is fused with its neighbours and has no sum."""
    if not known_equal(m.x.shape.lens[-1], 1):
        return "the product has a sum"
    if not m.ins.shape.type == m.x.shape.type == m.y.shape.type:
        return "the result has another type"
    lens = m.ins.shape.lens
    return b.op("mul", b.broadcast(m.x, lens), b.broadcast(m.y, lens))


@rule("depthwise_pixels", op("convolution", some("x"), some("w")), exact=True)
def depthwise_pixels(m: Match, b: RewriteBuilder) -> object:
    """``conv(x, w) -> x * w`` for one tap of each channel by itself, which has no sum and is fused with neighbours."""
    channels, inside, *kernel = m.w.shape.lens
    attributes = m.ins.op.normalized([m.x.shape, m.w.shape]).attributes()
    if inside != 1 or any(n != 1 for n in (*kernel, *attributes["stride"])) or any(attributes["padding"]):
        return "the convolution has a sum, padding or a stride"
    if attributes["group"] != channels or not known_equal(m.x.shape.lens[1], channels):
        return "a channel has several results"
    if (
        attributes["padding_mode"] is not PaddingMode.default_
        or not m.ins.shape.type == m.x.shape.type == m.w.shape.type
    ):
        return "the padding is not known, or the result has another type"
    factors = b.reshape(m.w, (channels, *kernel))
    return b.op("mul", m.x, b.broadcast(factors, m.ins.shape.lens))


@rule(
    "product_of_nothing",
    op("dot quant_dot convolution quant_convolution", some("x"), some("w")),
    exact=True,
)
def product_of_nothing(m: Match, b: RewriteBuilder) -> object:
    """A product along no elements, or a convolution of no channels, is 0."""
    depth = m.x.shape.lens[-1] if m.ins.name in ("dot", "quant_dot") else m.w.shape.lens[1]
    return b.scalar(0, m.ins) if known_equal(depth, 0) else None


CONTRACTION_RULES = (
    product_of_nothing,
    *ABSORBING,
    add_convolutions,
    add_scaled_input,
    depthwise_pixels,
    outer_products,
)
