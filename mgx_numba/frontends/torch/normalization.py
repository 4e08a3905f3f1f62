"""Normalisation, by primitive operators; statistics of 16-bit values are computed in float32."""

from __future__ import annotations

from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ..arithmetic import standardize, widened
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Lens, Results

Maybe = Instruction | None


def affine(g: AtenBuilder, x: Instruction, scale: Maybe, bias: Maybe) -> Instruction:
    """Emit ``x * scale + bias``."""
    if scale is not None:
        x = g.pointwise("mul", x, g.convert(scale, x.shape.type))
    return x if bias is None else g.pointwise("add", x, g.convert(bias, x.shape.type))


@register("layer_norm", "native_layer_norm")
def layer_norm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    shape: Lens,
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
    *_: object,
) -> Results:
    """Emit layer normalisation over the last axes, the mean and the inverse deviation."""
    axes = range(rank(x) - len(shape), rank(x))
    normal, mean, inverse = standardize(g, widened(g, x), axes, eps)
    y = affine(g, g.convert(normal, x.shape.type), weight, bias)
    if node.base == "layer_norm":
        return y
    return [y, *(v if t is None else g.convert(v, t) for v, t in zip((mean, inverse), node.types[1:]))]


@register("rms_norm", "_fused_rms_norm")
def rms_norm(
    g: AtenBuilder, node: AtenNode, x: Instruction, shape: Lens, weight: Maybe = None, eps: float | None = None
) -> Results:
    """Emit ``x / sqrt(mean(x**2) + eps) * weight`` over the last axes."""
    import ml_dtypes

    axes = range(rank(x) - len(shape), rank(x))
    value = widened(g, x)
    least = float(ml_dtypes.finfo(value.shape.type.numpy).eps) if eps is None else eps
    mean = g.reduce("reduce_mean", g.op("mul", value, value), axes)
    inverse = g.op("rsqrt", g.pointwise("add", mean, g.like(least, value)))
    y = affine(g, g.convert(g.pointwise("mul", value, inverse), x.shape.type), weight, None)
    return y if node.base == "rms_norm" else [y, inverse]


@register("native_group_norm")
def native_group_norm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    weight: Maybe,
    bias: Maybe,
    n: object,
    c: object,
    hxw: object,
    groups: int,
    eps: float,
) -> list[Instruction]:
    """Emit group normalisation, the means and the inverse deviations."""
    lens = g.lens(x)
    split = (lens[0], groups, lens[1] // groups, *lens[2:])
    normal, *moments = standardize(g, g.reshape(widened(g, x), split), range(2, len(split)), eps)
    y = g.reshape(g.convert(normal, x.shape.type), lens)
    small = [g.convert(g.reshape(v, (lens[0], groups)), x.shape.type) for v in moments]
    return [affine(g, y, *(_of_channels(g, v, x) for v in (weight, bias))), *small]


def _of_channels(g: AtenBuilder, value: Maybe, x: Instruction) -> Maybe:
    """Append axes to a vector of values per channel so that it broadcasts against [n, c, spatial...]."""
    return None if value is None else g.unsqueeze(value, list(range(1, max(rank(x) - 1, 1))))


@register("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def batch_norm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    weight: Maybe,
    bias: Maybe,
    mean: Maybe,
    variance: Maybe,
    training: bool,
    momentum: float,
    eps: float,
    *_: object,
) -> Results:
    """Emit batch normalisation; in inference by given statistics."""
    if training or mean is None or variance is None:
        if training and mean is not None:
            raise UnsupportedError("batch normalisation in training mode changes its statistics; call model.eval()")
        y = _by_batch(g, x, weight, bias, eps)
    else:
        y = by_statistics(g, x, weight, bias, mean, variance, eps)
    return y if node.base == "batch_norm" else [y, None, None, None]


@register("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def batch_norm_no_training(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    weight: Maybe,
    bias: Maybe,
    mean: Instruction,
    variance: Instruction,
    momentum: float,
    eps: float,
) -> list[Maybe]:
    """Emit batch normalisation by given statistics."""
    return [by_statistics(g, x, weight, bias, mean, variance, eps), None, None, None]


@register("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Maybe]:
    """Emit batch normalisation by the batch's statistics."""
    return [_by_batch(g, x, weight, bias, eps), None, None]


def by_statistics(
    g: AtenBuilder,
    x: Instruction,
    weight: Maybe,
    bias: Maybe,
    mean: Instruction,
    variance: Instruction,
    eps: float,
) -> Instruction:
    """Emit ``(x - mean) * (weight / sqrt(variance + eps)) + bias`` for each channel."""
    type = x.shape.type
    spread = widened(g, _channels(g, variance, x))
    factor = g.op("rsqrt", g.pointwise("add", spread, g.like(eps, spread)))
    if weight is not None:
        factor = g.pointwise("mul", widened(g, _channels(g, weight, x)), factor)
    centred = g.pointwise("sub", x, g.convert(_channels(g, mean, x), type))
    y = g.pointwise("mul", centred, g.convert(factor, type))
    return y if bias is None else g.pointwise("add", y, g.convert(_channels(g, bias, x), type))


def _channels(g: AtenBuilder, value: Instruction, x: Instruction) -> Instruction:
    found = _of_channels(g, value, x) if rank(x) > 2 else value
    assert found is not None
    return found


def _by_batch(g: AtenBuilder, x: Instruction, weight: Maybe, bias: Maybe, eps: float) -> Instruction:
    normal = standardize(g, widened(g, x), [0, *range(2, rank(x))], eps)[0]
    parts = [None if v is None else _channels(g, v, x) for v in (weight, bias)]
    return affine(g, g.convert(normal, x.shape.type), *parts)
