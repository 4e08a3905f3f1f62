"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from ...core.types import Type
from ...errors import ShapeError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from ..builder import GraphBuilder
from .builder import Builder
from .node import Node
from .registry import MICROSOFT, register

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # defaults of ONNX's Selu


def add_scalar(g: GraphBuilder, x: Instruction, value: float) -> Instruction:
    """Emit ``x + value``; for integers a negative value is subtracted, since unsigned types cannot hold it."""
    if value < 0 and not x.shape.type.is_floating:
        return g.pointwise("sub", x, g.like(-value, x))
    return x if value == 0 else g.pointwise("add", x, g.like(value, x))


def above(g: Builder, x: Instruction, limit: float) -> Instruction:
    """Emit ``x > limit``; an integer is above a limit if it is above the limit's floor."""
    return _compared(g, "greater", x, limit if x.shape.type.is_floating else np.floor(limit))


def below(g: Builder, x: Instruction, limit: float) -> Instruction:
    """Emit ``x < limit``; an integer is below a limit if it is below the limit's ceiling."""
    return _compared(g, "less", x, limit if x.shape.type.is_floating else np.ceil(limit))


def _compared(g: Builder, op: str, x: Instruction, limit: float) -> Instruction:
    """Emit a comparison with a limit; true for all values if the limit lies beyond the integer type's range."""
    if not x.shape.type.is_floating:
        range = np.iinfo(x.shape.type.numpy)
        passed = limit < range.min if op == "greater" else limit > range.max
        if passed:
            return g.op("not", g.pointwise("less", x, x))
    return g.pointwise(op, x, g.like(limit, x))


def gelu_erf(g: GraphBuilder, x: Instruction) -> Instruction:
    """Emit ``0.5 * x * (1 + erf(x / sqrt(2)))``."""
    erf = g.op("erf", mul_scalar(g, x, math.sqrt(0.5)))
    return g.op("mul", mul_scalar(g, x, 0.5), add_scalar(g, erf, 1))  # ``2 * x`` may overflow


def gelu_tanh(g: GraphBuilder, x: Instruction) -> Instruction:
    """Emit ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    cube = g.op("mul", x, g.op("mul", x, x))
    inner = g.op("add", x, mul_scalar(g, cube, 0.044715))
    tanh = g.op("tanh", mul_scalar(g, inner, math.sqrt(2 / math.pi)))
    return g.op("mul", mul_scalar(g, x, 0.5), add_scalar(g, tanh, 1))


def swish(g: GraphBuilder, x: Instruction, alpha: float = 1.0) -> Instruction:
    """Emit ``x * sigmoid(alpha * x)``."""
    return g.op("mul", x, g.op("sigmoid", mul_scalar(g, x, alpha)))


@register("Mish", "Relu", "Sigmoid", "Softplus")
def activation(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the IR operator of the node's (lower-case) name."""
    return g.op(node.op_type.lower(), x)


@register("LeakyRelu")
def leaky_relu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x`` where not negative, ``alpha * x`` elsewhere."""
    return g.op("leaky_relu", x, alpha=node.get_float("alpha", 0.01))


@register("Elu")
def elu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x`` where not negative, ``alpha * (exp(x) - 1)`` elsewhere."""
    return g.op("elu", x, alpha=node.get_float("alpha", 1.0))


@register("Selu")
def selu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``gamma * elu(x, alpha)``."""
    return mul_scalar(g, g.op("elu", x, alpha=node.get_float("alpha", SELU_ALPHA)), node.get_float("gamma", SELU_GAMMA))


@register("Celu")
def celu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    alpha = node.get_float("alpha", 1.0)
    if alpha == 0:
        raise ShapeError("attribute 'alpha' is 0")
    return mul_scalar(g, g.op("elu", mul_scalar(g, x, 1 / alpha), alpha=1.0), alpha)


@register("PRelu")
def prelu(g: Builder, node: Node, x: Instruction, slope: Instruction) -> Instruction:
    """Emit ``x`` where not negative, ``slope * x`` elsewhere; the slope broadcasts to ``x``."""
    return g.pointwise("prelu", x, slope)


@register("HardSigmoid")
def hard_sigmoid(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``max(0, min(1, alpha * x + beta))``."""
    line = add_scalar(g, mul_scalar(g, x, node.get_float("alpha", 0.2)), node.get_float("beta", 0.5))
    return g.pointwise("clip", line, g.like(0, x), g.like(1, x))


@register("HardSwish")
def hard_swish(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x * max(0, min(1, x / 6 + 0.5))``."""
    line = add_scalar(g, mul_scalar(g, x, float(np.float32(1 / 6))), 0.5)  # float32, as HardSigmoid's attribute
    return g.op("mul", x, g.pointwise("clip", line, g.like(0, x), g.like(1, x)))


@register("Softsign")
def softsign(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x / (1 + |x|)``."""
    return g.op("div", x, add_scalar(g, g.op("abs", x), 1))


@register("Swish")
def swish_node(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x * sigmoid(alpha * x)``."""
    return swish(g, x, node.get_float("alpha", 1.0))


@register("ThresholdedRelu")
def thresholded_relu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x`` where greater than ``alpha``, 0 elsewhere."""
    return g.pointwise("where", above(g, x, node.get_float("alpha", 1.0)), x, g.like(0, x))


@register("Shrink")
def shrink(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, 0 between.

    For integers, a fractional bias is added in float64 and the result is truncated.
    """
    lambd, bias = node.get_float("lambd", 0.5), node.get_float("bias", 0.0)
    type = x.shape.type
    low, high = below(g, x, -lambd), above(g, x, lambd)
    wide = x if type.is_floating or bias.is_integer() else g.convert(x, Type.double_type)
    rest = g.pointwise("where", high, add_scalar(g, wide, -bias), g.like(0, wide))
    return g.convert(g.pointwise("where", low, add_scalar(g, wide, bias), rest), type)


@register("Gelu")
def gelu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit GELU in the exact form or in the tanh approximation, by ``approximate``."""
    return gelu_tanh(g, x) if node.get_choice("approximate", ("none", "tanh"), "none") == "tanh" else gelu_erf(g, x)


@register("Gelu", domain=MICROSOFT)
def gelu_contrib(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the exact GELU."""
    return gelu_erf(g, x)


@register("BiasGelu", domain=MICROSOFT)
def bias_gelu(g: Builder, node: Node, x: Instruction, bias: Instruction) -> Instruction:
    """Emit the exact ``gelu(x + bias)``."""
    return gelu_erf(g, g.pointwise("add", x, bias))


@register("FastGelu", domain=MICROSOFT)
def fast_gelu(g: Builder, node: Node, x: Instruction, bias: Instruction | None = None) -> Instruction:
    """Emit ``gelu(x + bias)`` in the tanh approximation."""
    return gelu_tanh(g, x if bias is None else g.pointwise("add", x, bias))


@register("QuickGelu", domain=MICROSOFT)
def quick_gelu(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x * sigmoid(alpha * x)``."""
    return swish(g, x, node.get_float("alpha", 1.702))


@register("BiasAdd", domain=MICROSOFT)
def bias_add(g: Builder, node: Node, x: Instruction, bias: Instruction, skip: Instruction) -> Instruction:
    """Emit ``x + bias + skip``."""
    return g.pointwise("add", g.pointwise("add", x, bias), skip)


@register("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(g: Builder, node: Node, x: Instruction, bias: Instruction) -> Instruction:
    """Emit ``left * gelu(right)`` for the halves of ``x + bias`` along the last axis."""
    total = g.pointwise("add", x, bias)
    size = g.lens(total)[-1]
    if size % 2:
        raise ShapeError(f"last axis has odd length {size}")
    left, right = g.split(total, len(g.lens(total)) - 1, [size // 2, size // 2])
    return g.op("mul", left, gelu_erf(g, right))
