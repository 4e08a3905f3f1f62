"""Activation functions and softmax."""

from __future__ import annotations

import math
from typing import Any

from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register


@register("relu", "sigmoid", "tanh", "silu", "mish")
def simple(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the IR operator of the same name."""
    return g.op(node.base, g.cast(x, node.type))


@register("hardtanh")
def hardtanh(g: AtenBuilder, node: AtenNode, x: Instruction, min_val: float = -1, max_val: float = 1) -> Instruction:
    """Emit the value limited to a range."""
    return g.pointwise("clip", x, g.like(min_val, x), g.like(max_val, x))


@register("gelu")
def gelu(g: AtenBuilder, node: AtenNode, x: Instruction, approximate: str = "none") -> Instruction:
    """Emit GELU."""
    return g.op("gelu_tanh" if approximate == "tanh" else "gelu_erf", x)


@register("elu")
def elu(
    g: AtenBuilder, node: AtenNode, x: Instruction, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Instruction:
    """Emit ``scale * elu(x, alpha)``; negative values are multiplied by ``input_scale`` first."""
    if input_scale != 1:
        negative = g.pointwise("less", x, g.like(0, x))
        x = g.pointwise("where", negative, g.pointwise("mul", x, g.like(input_scale, x)), x)
    y = g.op("elu", x, alpha=float(alpha))
    return y if scale == 1 else g.pointwise("mul", y, g.like(scale, y))


@register("leaky_relu")
def leaky_relu(g: AtenBuilder, node: AtenNode, x: Instruction, negative_slope: float = 0.01) -> Instruction:
    """Emit ``x`` where not negative, a multiple elsewhere."""
    return g.op("leaky_relu", x, alpha=float(negative_slope))


@register("rrelu")
def rrelu(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Instruction:
    """Emit leaky ReLU with the mean slope, which inference uses."""
    if training:
        raise ParseError("rrelu in training mode takes random numbers")
    return g.op("leaky_relu", x, alpha=(lower + upper) / 2)


@register("rrelu_with_noise_functional")
def rrelu_with_noise(
    g: AtenBuilder, node: AtenNode, x: Instruction, noise: Instruction, *options: Any
) -> list[Instruction | None]:
    """Emit `rrelu`; the noise is for training."""
    return [rrelu(g, node, x, *options), None]


@register("hardsigmoid")
def hardsigmoid(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit ``clip(x / 6 + 1 / 2, 0, 1)``."""
    line = g.pointwise("clip", g.pointwise("add", x, g.like(3, x)), g.like(0, x), g.like(6, x))
    return g.pointwise("mul", line, g.like(1 / 6, x))


@register("hardswish")
def hardswish(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit ``x * hardsigmoid(x)``."""
    return g.op("mul", x, hardsigmoid(g, node, x))


@register("softplus")
def softplus(g: AtenBuilder, node: AtenNode, x: Instruction, beta: float = 1, threshold: float = 20) -> Instruction:
    """Emit ``log(1 + exp(beta * x)) / beta``; beyond the threshold ``x``, from which it does not differ there."""
    if beta == 1:
        y, wide = g.op("softplus", x), x
    else:
        wide = g.pointwise("mul", x, g.like(beta, x))
        y = g.pointwise("div", g.op("softplus", wide), g.like(beta, x))
    if threshold >= 20:
        return y
    return g.pointwise("where", g.pointwise("greater", wide, g.like(threshold, x)), x, y)


@register("softmax", "softmax.int", "_softmax", "log_softmax", "log_softmax.int", "_log_softmax", "_safe_softmax")
def softmax(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, *_: object, dtype: object = None) -> Instruction:
    """Emit softmax or its logarithm; the safe one gives 0 for rows that are all -inf."""
    op = "logsoftmax" if "log" in node.base else "softmax"
    x = g.cast(x, node.type)
    if rank(x) == 0:
        return g.squeeze(g.op(op, g.unsqueeze(x, [0]), axis=0), [0])
    axis = g.axis(dim, rank(x))
    y = g.op(op, x, axis=axis)
    if node.base != "_safe_softmax":
        return y
    hidden = g.pointwise("equal", g.reduce("reduce_max", x, [axis]), g.like(-math.inf, x))
    return g.pointwise("where", hidden, g.like(0, y), y)
