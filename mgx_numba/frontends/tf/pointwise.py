"""Elementwise arithmetic, comparison, logic, conversion and activations."""

from __future__ import annotations

from ...errors import ParseError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from ..handlers import SHARED_BINARY, SHARED_UNARY, binary, unary
from .node import TfNode
from .registry import register

UNARY = {
    **SHARED_UNARY,
    "Invert": "bitwise_not",
    "IsInf": "isinf",
    "IsNan": "isnan",
    "LogicalNot": "not",
    "Rint": "nearbyint",
    "Rsqrt": "rsqrt",
}

BINARY = {
    **SHARED_BINARY,
    "AddV2": "add",
    "FloorMod": "mod",
    "GreaterEqual": "greater_or_equal",
    "LessEqual": "less_or_equal",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
    "Maximum": "max",
    "Minimum": "min",
    "Mod": "fmod",
    "Pow": "pow",
    "RealDiv": "div",
    "SquaredDifference": "sqdiff",
    "TruncateDiv": "div",
    "TruncateMod": "fmod",
}


for _tf, _op in UNARY.items():
    register(_tf)(unary(_op))
for _tf, _op in BINARY.items():
    register(_tf)(binary(_op))


@register("AddN")
def add_n(g: GraphBuilder, node: TfNode, first: Instruction, *others: Instruction) -> Instruction:
    """Emit the sum of any number of inputs of equal shape."""
    return g.chain("add", [first, *others]) if others else g.op("identity", first)


@register("Cast")
def cast(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the conversion to ``DstT``."""
    type = node.get_type("DstT")
    return g.op("identity", x) if type is x.shape.type else g.op("convert", x, target_type=type)


@register("ClipByValue")
def clip_by_value(g: GraphBuilder, node: TfNode, x: Instruction, low: Instruction, high: Instruction) -> Instruction:
    """Emit the input clipped to two bounds."""
    return g.pointwise("clip", x, low, high)


@register("DivNoNan")
def div_no_nan(g: GraphBuilder, node: TfNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the quotient, 0 where the divisor is 0."""
    zero = g.like(0, b)
    return g.pointwise("where", g.pointwise("equal", b, zero), zero, g.pointwise("div", a, b))


@register("Erfc")
def erfc(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``1 - erf(x)``."""
    return g.pointwise("sub", g.like(1, x), g.op("erf", x))


@register("Expm1")
def expm1(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``exp(x) - 1``, as ``2 sinh(x / 2) exp(x / 2)`` for ``|x| < 1``, which avoids cancellation."""
    half = g.pointwise("mul", x, g.like(0.5, x))
    small = g.pointwise("mul", g.pointwise("mul", g.op("sinh", half), g.op("exp", half)), g.like(2, x))
    near = g.pointwise("less", g.op("abs", x), g.like(1, x))
    return g.pointwise("where", near, small, g.pointwise("sub", g.op("exp", x), g.like(1, x)))


@register("Log1p")
def log1p(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``log(1 + x)``, as ``2 atanh(x / (2 + x))`` for ``|x| < 0.5``, which avoids cancellation."""
    small = g.pointwise("mul", g.op("atanh", g.pointwise("div", x, g.pointwise("add", x, g.like(2, x)))), g.like(2, x))
    near = g.pointwise("less", g.op("abs", x), g.like(0.5, x))
    return g.pointwise("where", near, small, g.op("log", g.pointwise("add", x, g.like(1, x))))


@register("FloorDiv")
def floor_div(g: GraphBuilder, node: TfNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the quotient rounded down."""
    if a.shape.type.is_floating:
        return g.op("floor", g.pointwise("div", a, b))
    return g.divided_down(a, b)


@register("IsFinite")
def is_finite(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit whether elements are neither infinite nor NaN."""
    return g.op("not", g.op("logical_or", g.op("isinf", x), g.op("isnan", x)))


@register("NotEqual")
def not_equal(g: GraphBuilder, node: TfNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit whether elements differ."""
    return g.op("not", g.pointwise("equal", a, b))


@register("Square")
def square(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ``x * x``."""
    return g.op("mul", x, x)


@register("Select", "SelectV2")
def select(g: GraphBuilder, node: TfNode, condition: Instruction, a: Instruction, b: Instruction) -> Instruction:
    """Emit ``a`` where the condition holds, ``b`` elsewhere; in Select a vector selects whole rows."""
    if node.op_type == "Select" and rank(condition) == 1 < rank(a):
        condition = g.unsqueeze(condition, list(range(1, rank(a))))
    return g.pointwise("where", condition, a, b)


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
