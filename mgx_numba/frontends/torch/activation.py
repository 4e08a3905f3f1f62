"""Activation functions and softmax."""

from __future__ import annotations

import math
from typing import Any

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Axes

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # from the SELU paper


@register("relu", "sigmoid", "tanh", "silu", "mish")
def simple(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the IR operator of the same name."""
    return g.op(node.base, g.cast(x, node.type))


@register("relu6")
def relu6(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the value limited to [0, 6]."""
    return hardtanh(g, node, x, 0, 6)


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


@register("selu")
def selu(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit SELU."""
    return elu(g, node, x, SELU_ALPHA, SELU_SCALE)


@register("celu")
def celu(g: AtenBuilder, node: AtenNode, x: Instruction, alpha: float = 1) -> Instruction:
    """Emit CELU."""
    return elu(g, node, x, alpha, 1, 1 / alpha)


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


@register("log_sigmoid")
def log_sigmoid(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit ``-softplus(-x)``."""
    return g.op("neg", g.op("softplus", g.op("neg", x)))


@register("log_sigmoid_forward")
def log_sigmoid_forward(g: AtenBuilder, node: AtenNode, x: Instruction) -> list[Instruction | None]:
    """Emit the logarithm of the sigmoid."""
    return [log_sigmoid(g, node, x), None]


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


@register("prelu", "_prelu_kernel")
def prelu(g: AtenBuilder, node: AtenNode, x: Instruction, weight: Instruction) -> Instruction:
    """Emit PReLU; one slope for each channel, or for all."""
    if rank(weight) == 1 and rank(x) > 1:
        weight = g.reshape(weight, (1, *g.lens(weight), *(1,) * (rank(x) - 2)))
    return g.pointwise("prelu", x, weight)


@register("glu")
def glu(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = -1) -> Instruction:
    """Emit the first half times the sigmoid of the second."""
    axis = g.axis(dim, rank(x))
    half = g.lens(x)[axis] // 2
    a, b = g.split(x, axis, [half, half])
    return g.op("mul", a, g.op("sigmoid", b))


@register("softshrink", "hardshrink")
def shrink(g: AtenBuilder, node: AtenNode, x: Instruction, lambd: float = 0.5) -> Instruction:
    """Emit 0 where the magnitude is at most ``lambd``; the soft one moves other values towards 0 by it."""
    above, below = g.pointwise("greater", x, g.like(lambd, x)), g.pointwise("less", x, g.like(-lambd, x))
    nothing = g.pointwise("mul", x, g.like(0, x))  # NaN stays NaN
    if node.base == "hardshrink":
        return g.pointwise("where", g.op("logical_or", above, below), x, nothing)
    low = g.pointwise("where", below, g.pointwise("add", x, g.like(lambd, x)), nothing)
    return g.pointwise("where", above, g.pointwise("sub", x, g.like(lambd, x)), low)


@register("threshold")
def threshold(g: AtenBuilder, node: AtenNode, x: Instruction, threshold: float, value: float) -> Instruction:
    """Emit ``x`` where above the threshold, ``value`` elsewhere."""
    return g.pointwise("where", g.pointwise("less_or_equal", x, g.like(threshold, x)), g.like(value, x), x)


@register("logit")
def logit(g: AtenBuilder, node: AtenNode, x: Instruction, eps: float | None = None) -> Instruction:
    """Emit ``log(x / (1 - x))``, with ``x`` limited to [eps, 1 - eps]; the first counts if they cross."""
    x = g.cast(x, node.type)
    if eps is not None:
        least, most = g.like(eps, x), g.like(1 - eps, x)
        x = g.pointwise("where", g.pointwise("less", x, least), least, g.pointwise("min", x, most))
    return g.op("log", g.pointwise("div", x, g.pointwise("sub", g.like(1, x), x)))


@register("logsumexp")
def logsumexp(g: AtenBuilder, node: AtenNode, x: Instruction, dim: Axes, keepdim: bool = False) -> Instruction:
    """Emit ``log(sum(exp(x)))``, with a finite largest element factored out."""
    axes = g.all_axes(x, dim)
    x = g.cast(x, node.type if node.type.is_floating else Type.float_type)
    top = g.reduce("reduce_max", x, axes)
    shift = g.pointwise("where", g.op("isinf", top), g.like(0, top), top)
    total = g.reduce("reduce_sum", g.op("exp", g.pointwise("sub", x, shift)), axes)
    y = g.op("add", g.op("log", total), shift)
    return y if keepdim or not axes else g.squeeze(y, axes)
