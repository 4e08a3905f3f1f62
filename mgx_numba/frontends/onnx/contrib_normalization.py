"""Normalisation operators of ONNX Runtime, and gated and branch-wise operators that compute in float32 inside."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .activation import swish
from .builder import Builder, rank
from .node import Node
from .normalization import grouped, layer_norm, rms_norm, scale_and_shift, stash_type
from .registry import MICROSOFT, register


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


def _normalized(g: Builder, x: Instruction, epsilon: float) -> Instruction:
    """Emit float32 x over the root of the mean of squares along its last axis."""
    mean = g.op("reduce_mean", g.pointwise("mul", x, x), axes=(rank(x) - 1,))
    return g.pointwise("mul", x, g.op("rsqrt", g.pointwise("add", mean, g.like(epsilon, x))))


@register("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(g: Builder, node: Node, x: Instruction, scale: Instruction, gate: Instruction) -> Instruction:
    """Emit the root mean square normalisation of groups as long as ``scale``, times the activated gate."""
    kind = node.get_choice("activation", ("silu", "swish", "sigmoid"), "silu")
    lens, width = g.lens(x), g.lens(scale)[0]
    if width < 1 or lens[-1] % width:
        raise ShapeError(f"{width} scales do not divide {lens[-1]} features")
    groups = (*lens[:-1], lens[-1] // width, width)
    wide, z = (g.reshape(g.convert(v, Type.float_type), groups) for v in (x, gate))
    y = g.pointwise("mul", _normalized(g, wide, node.get_float("epsilon", 1e-5)), g.convert(scale, Type.float_type))
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
    y = _normalized(g, g.reshape(g.convert(x, Type.float_type), wanted), node.get_float("epsilon", 1e-6))
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
