"""Operators on quantised tensors.

Each is emitted as dequantisation, operator and quantisation; passes turn these into integer contractions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from ..handlers import Handler, Parser
from .builder import Builder, rank
from .convolution import add_bias, integer_convolution
from .matmul import matmul, matmul_integer
from .node import Node
from .pooling import global_pool_mode, pool_mode
from .quantization import along_axis, dequantize, quantize
from .registry import MICROSOFT, register, register_handler


def centred(g: Builder, x: Instruction, zero: Instruction) -> Instruction:
    """Emit ``x - zero`` of float8 in float32; the zero point broadcasts."""
    return g.pointwise("sub", g.convert(x, Type.float_type), g.convert(zero, Type.float_type))


def requantize(
    g: Builder, x: Instruction, scale: Instruction, y_scale: Instruction, y_zero: Instruction, axis: int
) -> Instruction:
    """Emit ``saturate(round(x * (scale / y_scale)) + y_zero)`` for integer sums ``x``; vectors lie along ``axis``.

    A single multiplication of exact sums rounds as the specification's integer arithmetic, including ties. Sums of
    values scaled before do not.
    """
    scale, y_scale = (g.convert(_rows(g, v, 0), Type.float_type) for v in (scale, y_scale))
    factor = g.pointwise("div", scale, y_scale)
    x = g.convert(x, Type.float_type)
    y = g.pointwise("mul", x, factor if rank(factor) > 1 else along_axis(g, factor, x, axis))
    return quantize(g, y, g.like(1, y), y_zero, axis)


def _rows(g: Builder, value: Instruction, axes: int) -> Instruction:
    """Make a scale or zero point broadcast: one element becomes a scalar, a vector gets ``axes`` trailing axes."""
    if value.shape.elements == 1 and rank(value) <= 1:
        return g.reshape(value, ())
    return g.unsqueeze(value, list(range(1, axes + 1))) if rank(value) == 1 else value


@register("QLinearConv", domain=("", MICROSOFT))
def qlinear_conv(
    g: Builder,
    node: Node,
    x: Instruction,
    x_scale: Instruction,
    x_zero: Instruction,
    w: Instruction,
    w_scale: Instruction,
    w_zero: Instruction,
    y_scale: Instruction,
    y_zero: Instruction,
    bias: Instruction | None = None,
) -> Instruction:
    """Emit QLinearConv; weights have one scale or one per output channel, the bias has the product of the scales."""
    last, axes = node.get_bool("channels_last"), rank(x)
    if last:
        x = g.transpose(x, (0, axes - 1, *range(1, axes - 1)))
    y = add_bias(g, integer_convolution(g, node, x, w, x_zero, w_zero), bias)
    scale = g.pointwise("mul", g.reshape(x_scale, ()), w_scale)
    result = requantize(g, y, scale, y_scale, y_zero, axis=1)
    return g.transpose(result, (0, *range(2, axes), 1)) if last else result


@register("QLinearMatMul", domain=("", MICROSOFT))
def qlinear_matmul(
    g: Builder,
    node: Node,
    a: Instruction,
    a_scale: Instruction,
    a_zero: Instruction,
    b: Instruction,
    b_scale: Instruction,
    b_zero: Instruction,
    y_scale: Instruction,
    y_zero: Instruction,
) -> Instruction:
    """Emit QLinearMatMul; A has scales per tensor or per row, B per tensor or per column."""
    if a.shape.type.is_floating:
        product = matmul(g, centred(g, a, _rows(g, a_zero, min(rank(a) - 1, 1))), centred(g, b, _rows(g, b_zero, 0)))
    else:
        product = matmul_integer(g, a, b, a_zero, b_zero)
    # the product with a vector has no column axis
    scale = g.pointwise("mul", _rows(g, a_scale, min(rank(a) - 1, rank(b) - 1, 1)), _rows(g, b_scale, 0))
    return requantize(g, product, scale, y_scale, y_zero, axis=-1)


def quantised(
    *names: str, plain: int = 0, tensors: int = 1, zeros: bool = False, result_zero: bool = False
) -> Callable[[Parser], Parser]:
    """Return a decorator that registers operators between dequantisation and quantisation by their float32 form.

    The decorated function is ``emit(g, node, *plain, *wide)``. Inputs are ``plain`` tensors that it gets unchanged,
    ``tensors`` triples of tensor, scale and zero point, then scale and zero point of the result, which has the type of
    the first triple's tensor.

    Args:
        zeros: whether the zero points of triples are required.
        result_zero: whether the zero point of the result is required.
    """
    end = plain + 3 * tensors
    optional = frozenset(() if zeros else range(plain + 2, end, 3))

    def add(emit: Parser) -> Parser:
        def parse(g: Builder, node: Node, *inputs: Any) -> Instruction:
            wide = [dequantize(g, *inputs[k : k + 3]) for k in range(plain, end, 3)]
            y_zero = inputs[end + 1] if len(inputs) > end + 1 else None
            y = emit(g, node, *inputs[:plain], *wide)
            return quantize(g, y, inputs[end], y_zero, type=inputs[plain].shape.type)

        register_handler(Handler(parse, end + 1 + result_zero, end + 2, optional), *names, domain=MICROSOFT)
        return emit

    return add


@quantised("QLinearAdd", "QLinearMul", tensors=2)
def qlinear_binary(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit the sum or product."""
    return g.pointwise("add" if node.op_type == "QLinearAdd" else "mul", a, b)


@quantised("QLinearLeakyRelu", "QLinearSigmoid")
def qlinear_unary(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the activation function."""
    if node.op_type == "QLinearSigmoid":
        return g.op("sigmoid", x)
    return g.op("leaky_relu", x, alpha=node.get_float("alpha", 0.01))


@quantised("QLinearAveragePool", "QLinearGlobalAveragePool")
def qlinear_pool(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the mean over windows or whole images."""
    last, count = node.get_bool("channels_last"), rank(x)
    if last:
        x = g.transpose(x, [0, count - 1, *range(1, count - 1)])
    whole = node.op_type == "QLinearGlobalAveragePool"
    y = pool_mode(g, node, x, "average")[0] if not whole else global_pool_mode(g, node, x, "average")
    return g.transpose(y, [0, *range(2, count), 1]) if last else y


@register("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(
    g: Builder, node: Node, y_scale: Instruction, y_zero: Instruction, *parts: Instruction
) -> Instruction:
    """Emit QLinearConcat: scale and zero point of the result, then triples of tensor, scale and zero point."""
    if not parts or len(parts) % 3:
        raise ParseError(f"got {len(parts)} inputs after scale and zero point, expected three for each tensor")
    wide = [dequantize(g, parts[k], parts[k + 1], parts[k + 2]) for k in range(0, len(parts), 3)]
    axis = g.axis(node.get_int("axis"), rank(wide[0]))
    joined = g.op("concat", *wide, axis=axis) if len(wide) > 1 else wide[0]
    return quantize(g, joined, y_scale, y_zero)
