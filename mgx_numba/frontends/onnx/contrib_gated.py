"""Gated and branch-wise operators of ONNX Runtime that compute in float32 inside.

com.microsoft: BranchwiseRMSNorm GatedAdd GatedRMSNorm ScaledSiLU.
"""

from __future__ import annotations

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .activation import swish
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register


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
