"""Normalisation, by primitive operators: ONNX's, and ONNX Runtime's, with gated and branch-wise operators that compute
in float32 inside."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..arithmetic import standardize, widened
from ..builder import GraphBuilder
from .activation import swish
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register
from .tensors import ir_type


def scale_and_shift(
    g: GraphBuilder, x: Instruction, scale: Instruction | None, bias: Instruction | None
) -> Instruction:
    """Emit ``x * scale + bias``, both broadcast."""
    if scale is not None:
        x = g.pointwise("mul", x, scale)
    return x if bias is None else g.pointwise("add", x, bias)


def layer_norm(
    g: GraphBuilder,
    x: Instruction,
    scale: Instruction | None,
    bias: Instruction | None,
    axis: int,
    epsilon: float,
    stash: Type = Type.float_type,
) -> tuple[Instruction, Instruction, Instruction]:
    """Normalise over the axes from ``axis`` on; also return the mean and the inverse deviation, in type ``stash``."""
    normal, mean, inverse = standardize(g, widened(g, x), range(axis, rank(x)), epsilon)
    y = scale_and_shift(g, g.convert(normal, x.shape.type), scale, bias)
    return y, g.convert(mean, stash), g.convert(inverse, stash)


def rms_norm(
    g: GraphBuilder,
    x: Instruction,
    scale: Instruction | None,
    axis: int,
    epsilon: float,
    stash: Type = Type.float_type,
) -> tuple[Instruction, Instruction]:
    """Emit ``x / sqrt(mean(x**2) + epsilon) * scale``, over the axes from ``axis`` on, and the inverse root."""
    wide = widened(g, x)
    mean = g.reduce("reduce_mean", g.op("mul", wide, wide), range(axis, rank(x)))
    inverse = g.op("rsqrt", g.pointwise("add", mean, g.like(epsilon, wide)))
    normal = g.convert(g.pointwise("mul", wide, inverse), x.shape.type)
    return scale_and_shift(g, normal, scale, None), g.convert(inverse, stash)


def stash_type(node: Node) -> Type:
    """Return the type of statistics that are results: the attribute, also for a double input."""
    number = node.get_int("stash_type", 1)
    if number == 0:
        node.accept("stash_type is 0 (undefined), taken for 1 (float32)")
    return ir_type(number or 1)


@register("LayerNormalization")
def layer_normalization(
    g: Builder, node: Node, x: Instruction, scale: Instruction, bias: Instruction | None = None
) -> Sequence[Instruction]:
    """Emit LayerNormalization over the axes from ``axis`` on."""
    axis = g.axis(node.get_int("axis", -1), rank(x))
    return layer_norm(g, x, scale, bias, axis, node.get_float("epsilon", 1e-5), stash_type(node))


@register("RMSNormalization")
def rms_normalization(g: Builder, node: Node, x: Instruction, scale: Instruction) -> Instruction:
    """Emit RMSNormalization over the axes from ``axis`` on."""
    axis = g.axis(node.get_int("axis", -1), rank(x))
    return rms_norm(g, x, scale, axis, node.get_float("epsilon", 1e-5), stash_type(node))[0]


def per_channel(g: Builder, value: Instruction, x: Instruction, what: str) -> Instruction:
    """Append axes to a vector of values per channel so that it broadcasts against [n, c, spatial...]."""
    if rank(value) != 1:
        raise ParseError(f"input {what!r} has {rank(value)} dimensions, expected 1")
    channels = x.shape.dims[1]
    if not channels.min <= value.shape.elements <= channels.max:
        raise ShapeError(
            f"input {what!r} has {value.shape.elements} elements, expected one for each of {channels} channels"
        )
    return g.unsqueeze(value, list(range(1, rank(x) - 1)))


@register("BatchNormalization")
def batch_normalization(
    g: Builder,
    node: Node,
    x: Instruction,
    scale: Instruction,
    bias: Instruction,
    mean: Instruction,
    variance: Instruction,
) -> Instruction | list[Instruction]:
    """Emit ``(x - mean) * (scale / sqrt(variance + epsilon)) + bias`` for each channel.

    ``training_mode`` uses mean and variance of the batch, and returns the running mean and variance as further outputs.
    """
    node.refuse("spatial", 1)
    epsilon = node.get_float("epsilon", 1e-5)
    if rank(x) == 1:  # a vector is one channel, as in ONNX
        results = batch_normalization(g, node, g.unsqueeze(x, [1]), scale, bias, mean, variance)
        y, *running = [results] if isinstance(results, Instruction) else results
        return [g.squeeze(y, [1]), *running]
    if node.get_bool("training_mode"):
        return _batch_training(g, node, x, scale, bias, mean, variance, epsilon)
    if node.opset < 14 and node.wants(1):
        raise UnsupportedError("training mode of operator sets before 14 is not supported")
    parts = {"scale": scale, "B": bias, "mean": mean, "var": variance}
    scale, bias, mean, variance = (per_channel(g, value, x, what) for what, value in parts.items())
    return _apply_batch(g, x, scale, bias, mean, variance, epsilon)


def _apply_batch(
    g: Builder,
    x: Instruction,
    scale: Instruction,
    bias: Instruction,
    mean: Instruction,
    variance: Instruction,
    epsilon: float,
) -> Instruction:
    type = x.shape.type
    wide = max(type, variance.shape.type, key=lambda t: t.size).compute  # also for a norm that is folded into weights
    spread = g.convert(variance, wide)
    inverse = g.op("rsqrt", g.pointwise("add", spread, g.like(epsilon, spread)))
    centred = g.pointwise("sub", x, g.convert(mean, type))
    factor = g.convert(g.pointwise("mul", g.convert(scale, wide), inverse), type)
    return g.pointwise("add", g.pointwise("mul", centred, factor), g.convert(bias, type))


def _batch_training(
    g: Builder,
    node: Node,
    x: Instruction,
    scale: Instruction,
    bias: Instruction,
    mean: Instruction,
    variance: Instruction,
    epsilon: float,
) -> list[Instruction]:
    axes = [0, *range(2, rank(x))]
    wide = g.convert(x, mean.shape.type)
    now = g.reduce("reduce_mean", wide, axes)
    spread = g.reduce("reduce_mean", g.pointwise("sqdiff", wide, now), axes)
    scale, bias = (per_channel(g, v, x, what) for v, what in ((scale, "scale"), (bias, "B")))
    y = _apply_batch(g, x, scale, bias, now, spread, epsilon)
    momentum = node.get_float("momentum", 0.9)
    running = []
    for old, new in ((mean, g.squeeze(now, axes)), (variance, g.squeeze(spread, axes))):
        kept = g.pointwise("mul", old, g.like(momentum, old))
        running.append(g.pointwise("add", kept, g.pointwise("mul", new, g.like(1 - momentum, old))))
    return [y, *running]


@register("InstanceNormalization")
def instance_normalization(
    g: Builder, node: Node, x: Instruction, scale: Instruction, bias: Instruction
) -> Instruction:
    """Emit normalisation over the spatial axes of each channel of each image."""
    if rank(x) < 3:
        raise ParseError(f"input has {rank(x)} dimensions, expected at least 3")
    normal = standardize(g, x, range(2, rank(x)), node.get_float("epsilon", 1e-5))[0]
    return scale_and_shift(g, normal, per_channel(g, scale, x, "scale"), per_channel(g, bias, x, "B"))


def grouped(g: Builder, x: Instruction, groups: int, epsilon: float) -> tuple[Instruction, tuple[int, ...]]:
    """Standardise ``x`` [n, c, spatial...] over groups of channels, as [n, groups, c / groups, spatial...]."""
    lens = g.lens(x)
    if len(lens) < 3 or groups < 1 or lens[1] % groups:
        raise ShapeError(f"{groups} groups do not fit an input of lengths {list(lens)}")
    split = (lens[0], groups, lens[1] // groups, *lens[2:])
    wide = g.reshape(widened(g, x), split)
    normal = standardize(g, wide, range(2, len(split)), epsilon)[0]
    return g.convert(normal, x.shape.type), split


@register("GroupNormalization")
def group_normalization(g: Builder, node: Node, x: Instruction, scale: Instruction, bias: Instruction) -> Instruction:
    """Emit GroupNormalization; scale and bias are per group in operator set 18, per channel from 21 on."""
    groups = node.get_int("num_groups")
    each_channel = node.opset >= 21
    if not each_channel and g.lens(scale) == g.lens(bias) == g.lens(x)[1:2] != (groups,):
        node.accept("scale and bias are given per channel, which they may be from operator set 21 on")
        each_channel = True
    stash_type(node)  # validation only: statistics are not results
    normal, split = grouped(g, x, groups, node.get_float("epsilon", 1e-5))
    if each_channel:
        y = g.reshape(normal, g.lens(x))
        return scale_and_shift(g, y, per_channel(g, scale, x, "scale"), per_channel(g, bias, x, "bias"))
    parts = []
    for value, what in ((scale, "scale"), (bias, "bias")):
        if g.lens(value) != (groups,):
            raise ShapeError(f"input {what!r} is {list(g.lens(value))}, expected [{groups}], one for each group")
        parts.append(g.reshape(value, (groups, *(1,) * (len(split) - 2))))
    return g.reshape(scale_and_shift(g, normal, *parts), g.lens(x))


@register("LRN")
def lrn(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit local response normalisation over neighbouring channels."""
    return g.op(
        "lrn",
        x,
        alpha=node.get_float("alpha", 1e-4),
        beta=node.get_float("beta", 0.75),
        bias=node.get_float("bias", 1.0),
        size=node.get_int("size"),
    )


@register("LpNormalization")
def lp_normalization(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x`` divided by its norm of order ``p`` along ``axis``; 0 where the norm is 0."""
    order = node.get_int("p", 2)
    if order not in (1, 2):
        raise ParseError(f"p is {order}, expected 1 or 2")
    axis = g.axis(node.get_int("axis", -1), rank(x))
    norm = g.reduce("reduce_sum", g.op("abs", x) if order == 1 else g.op("mul", x, x), [axis])
    norm = norm if order == 1 else g.op("sqrt", norm)
    empty = g.pointwise("equal", norm, g.like(0, norm))
    return g.pointwise("div", x, g.pointwise("where", empty, g.like(1, norm), norm))


@register("MeanVarianceNormalization")
def mean_variance_normalization(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``(x - mean) / (deviation + 1e-9)`` over ``axes``."""
    axes = g.axes(node.get_ints("axes", (0, 2, 3)), rank(x))
    mean = g.reduce("reduce_mean", x, axes)
    spread = g.reduce("reduce_mean", g.pointwise("sqdiff", x, mean), axes)
    deviation = g.op("sqrt", spread)
    return g.pointwise("div", g.pointwise("sub", x, mean), g.pointwise("add", deviation, g.like(1e-9, x)))


@register("SimplifiedLayerNormalization", domain=("", MICROSOFT))
def simplified_layer_normalization(g: Builder, node: Node, x: Instruction, scale: Instruction) -> Sequence[Instruction]:
    """Emit root-mean-square normalisation over the axes from ``axis`` on."""
    axis = g.axis(node.get_int("axis", -1), rank(x))
    return rms_norm(g, x, scale, axis, node.get_float("epsilon", 1e-5), stash_type(node))


def _total(g: Builder, x: Instruction, skip: Instruction, bias: Instruction | None) -> Instruction:
    total = g.pointwise("add", x, skip)
    return total if bias is None else g.pointwise("add", total, bias)


@register("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    g: Builder,
    node: Node,
    x: Instruction,
    skip: Instruction,
    gamma: Instruction,
    beta: Instruction | None = None,
    bias: Instruction | None = None,
) -> Sequence[Instruction]:
    """Emit layer normalisation of ``x + skip + bias`` over the last axis; the sum is the fourth output."""
    total = _total(g, x, skip, bias)
    result = layer_norm(g, total, gamma, beta, rank(x) - 1, node.get_float("epsilon", 1e-12))
    return [*result, total]


@register("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    g: Builder,
    node: Node,
    x: Instruction,
    skip: Instruction,
    gamma: Instruction,
    bias: Instruction | None = None,
) -> Sequence[Instruction]:
    """Emit root-mean-square normalisation of ``x + skip + bias`` over the last axis.

    Further outputs are the sum's mean (float32, unused by the normalisation), the inverse root mean square, and the
    sum.
    """
    total = _total(g, x, skip, bias)
    y, inverse = rms_norm(g, total, gamma, rank(x) - 1, node.get_float("epsilon", 1e-12))
    mean = g.reduce("reduce_mean", g.convert(total, Type.float_type), [rank(x) - 1]) if node.wants(1) else inverse
    return [y, mean, inverse, total]


@register("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(
    g: Builder, node: Node, x: Instruction, gamma: Instruction, beta: Instruction, *skips: Instruction
) -> list[Instruction]:
    """Emit GroupNorm; channels are last unless ``channels_last`` is 0, ``activation`` 1 is SiLU."""
    if node.get_int("activation") not in (0, 1):
        raise ParseError(f"activation is {node.get_int('activation')}, expected 0 or 1")
    total = x
    for skip in skips:
        total = g.pointwise("add", total, _spread(g, skip, total, node.get_bool("channels_last", True)))
    last = node.get_bool("channels_last", True)
    count = rank(x)
    first = g.transpose(total, [0, count - 1, *range(1, count - 1)]) if last else total
    normal, _ = grouped(g, first, node.get_int("groups"), node.get_float("epsilon", 1e-5))
    y = g.reshape(normal, g.lens(first))
    shape = (gamma.shape.elements, *(1,) * (count - 2))
    y = g.convert(y, gamma.shape.type)
    y = g.convert(scale_and_shift(g, y, g.reshape(gamma, shape), g.reshape(beta, shape)), x.shape.type)
    y = swish(g, y) if node.get_int("activation") else y
    return [g.transpose(y, [0, *range(2, count), 1]) if last else y, total]


def _spread(g: Builder, skip: Instruction, x: Instruction, last: bool) -> Instruction:
    """Insert the spatial axes into a skip of [c] or [n, c]."""
    missing = rank(x) - rank(skip)
    if not missing:
        return skip
    lens = g.lens(skip)
    spatial = (1,) * (rank(x) - 2)
    batch = lens[:-1] if len(lens) == 2 else (1,)
    return g.reshape(skip, (*batch, *spatial, lens[-1]) if last else (*batch, lens[-1], *spatial))


@register("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(g: Builder, node: Node, x: Instruction, scale: Instruction, gate: Instruction) -> Instruction:
    """Emit the root mean square normalisation of groups as long as ``scale``, times the activated gate."""
    kind = node.get_choice("activation", ("silu", "swish", "sigmoid"), "silu")
    lens, width = g.lens(x), g.lens(scale)[0]
    if width < 1 or lens[-1] % width:
        raise ShapeError(f"{width} scales do not divide {lens[-1]} features")
    groups = (*lens[:-1], lens[-1] // width, width)
    wide, z = (g.reshape(g.convert(v, Type.float_type), groups) for v in (x, gate))
    y, _ = rms_norm(g, wide, g.convert(scale, Type.float_type), rank(wide) - 1, node.get_float("epsilon", 1e-5))
    y = g.pointwise("mul", y, g.op("sigmoid", z) if kind == "sigmoid" else swish(g, z))
    return g.convert(g.reshape(y, lens), x.shape.type)


@register("BranchwiseRMSNorm", domain=MICROSOFT)
def branchwise_rms_norm(g: Builder, node: Node, x: Instruction, scale: Instruction | None = None) -> Instruction:
    """Emit the root mean square normalisation of each branch [..., c, h], or of ``num_branches`` of [..., c * h]."""
    branches, lens = node.get_int("num_branches", 0), g.lens(x)
    if branches:
        if lens[-1] % branches:
            raise ShapeError(f"{branches} branches do not divide {lens[-1]} features")
        wanted = (*lens[:-1], branches, lens[-1] // branches)
    else:
        wanted = lens
    wide = g.reshape(g.convert(x, Type.float_type), wanted)
    y, _ = rms_norm(g, wide, None, rank(wide) - 1, node.get_float("epsilon", 1e-6))
    if scale is not None:
        factor = g.convert(scale, Type.float_type)
        whole = factor.shape.elements == wanted[-2] * wanted[-1]
        y = g.pointwise("mul", y, g.reshape(factor, wanted[-2:]) if whole else factor)
    return g.convert(g.reshape(y, lens), x.shape.type)


@register("GatedAdd", domain=MICROSOFT)
def gated_add(
    g: Builder, node: Node, x: Instruction, y: Instruction, gate: Instruction, weight: Instruction | None = None
) -> Instruction:
    """Emit ``x + y * gate`` for a gate per row."""
    if weight is not None:
        raise UnsupportedError("input 'gate_weight' (a projected gate) is not supported")
    if rank(gate) != rank(x):
        raise ParseError(f"gate has {rank(gate)} dimensions, expected {rank(x)}")
    return g.pointwise("add", x, g.pointwise("mul", y, gate))


@register("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(g: Builder, node: Node, x: Instruction, scale: Instruction | None = None) -> Instruction:
    """Emit ``z * sigmoid(z)`` for z = scale * x; the attribute ``alpha`` stands in for an absent scale."""
    factor = g.like(node.get_float("alpha", 1.0), x) if scale is None else g.convert(g.reshape(scale, ()), x.shape.type)
    return swish(g, g.pointwise("mul", x, factor))
