"""Activations.

Elu LeakyRelu LogSoftmax Relu Relu6 Selu Sigmoid Softmax Softplus Softsign Tanh.
"""

from __future__ import annotations

from ...errors import ParseError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .node import TfNode
from .registry import register

SELU_ALPHA, SELU_GAMMA = 1.7580993408473768 / 1.0507009873554805, 1.0507009873554805  # from the SELU paper, as in Selu


@register("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
def activation(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the IR operator of the node's (lower-case) name."""
    return g.op(node.op_type.lower(), x)


@register("Relu6")
def relu6(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the input clipped to [0, 6]."""
    return g.pointwise("clip", x, g.like(0, x), g.like(6, x))


@register("Elu")
def elu(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``x`` where not negative, ``exp(x) - 1`` elsewhere."""
    return g.op("elu", x, alpha=1.0)


@register("LeakyRelu")
def leaky_relu(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``x`` where not negative, ``alpha * x`` elsewhere."""
    return g.op("leaky_relu", x, alpha=node.get_float("alpha", 0.2))


@register("Selu")
def selu(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``gamma * elu(x, alpha)`` with the constants of the SELU paper."""
    return g.pointwise("mul", g.op("elu", x, alpha=SELU_ALPHA), g.like(SELU_GAMMA, x))


@register("Softmax", "LogSoftmax")
def softmax(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit softmax, or its logarithm, along the last axis."""
    if not rank(x):
        raise ParseError("the input has no dimensions, expected at least 1")
    return g.op(node.op_type.lower(), x, axis=rank(x) - 1)
