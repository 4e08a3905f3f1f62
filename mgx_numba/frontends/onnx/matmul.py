"""Matrix products, and sums of products over named axes."""

from __future__ import annotations

from typing import Any

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.einsum import einsum
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .activation import gelu_tanh
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register


def matmul(g: Builder, a: Instruction, b: Instruction, op: str = "dot", **attributes: Any) -> Instruction:
    """Emit NumPy's ``matmul`` by the operator ``op``: vectors are extended to matrices, outer axes broadcast.

    Raises:
        ShapeError: an operand is a scalar, or lengths do not fit.
    """
    if rank(a) == 0 or rank(b) == 0:
        raise ShapeError("an input has no dimensions")
    return g.matmul(a, b, op, **attributes)


@register("MatMul")
def matmul_node(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit the matrix product, for floats and integers."""
    return matmul(g, a, b)


def gemm(
    g: Builder,
    a: Instruction,
    b: Instruction,
    c: Instruction | None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transposed: tuple[bool, bool] = (False, False),
) -> Instruction:
    """Emit ``alpha * a' * b' + beta * c`` for matrices, with ``c`` broadcast to the product.

    Fractional factors of integers are applied in float64, and the result is truncated.
    """
    if rank(a) != 2 or rank(b) != 2:
        raise ShapeError(f"inputs A and B have {rank(a)} and {rank(b)} dimensions, expected 2")
    type = a.shape.type
    a = g.swap_last(a) if transposed[0] else a
    b = g.swap_last(b) if transposed[1] else b
    beta = 1.0 if c is None else beta
    if not type.is_floating and not (alpha.is_integer() and beta.is_integer()):
        wide = Type.double_type
        a, b, c = g.convert(a, wide), g.convert(b, wide), None if c is None else g.convert(c, wide)
        return g.convert(gemm(g, a, b, c, alpha, beta), type)
    product = mul_scalar(g, g.op("dot", a, b), alpha)
    if c is None or beta == 0:
        return product
    if beta != 1:
        c = mul_scalar(g, c, beta)
    return g.op("add", product, c) if c.shape == product.shape else g.pointwise("add", product, c)


@register("Gemm")
def gemm_node(g: Builder, node: Node, a: Instruction, b: Instruction, c: Instruction | None = None) -> Instruction:
    """Emit `gemm` with attributes ``alpha``, ``beta``, ``transA`` and ``transB``."""
    alpha, beta = node.get_float("alpha", 1.0), node.get_float("beta", 1.0)
    result = gemm(g, a, b, c, alpha, beta, (node.get_bool("transA"), node.get_bool("transB")))
    if result.shape.ndim != 2:
        raise ShapeError(f"input C {list(c.shape.lens) if c else []} does not broadcast to the product")
    return result


@register("Det")
def det(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the determinants of the matrices in the last two axes."""
    return g.op("determinant", x)


@register("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(
    g: Builder, node: Node, a: Instruction, b: Instruction, bias: Instruction | None = None
) -> Instruction:
    """Emit ``gelu(a * b + bias)`` in the tanh approximation."""
    product = matmul(g, a, b)
    return gelu_tanh(g, product if bias is None else g.pointwise("add", product, bias))


@register("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit ``alpha * a' * b'``, with the last two axes exchanged, or the first moved inward (``transBatch``)."""
    a = _batch_inside(g, a) if node.get_bool("transBatchA") and rank(a) > 2 else a
    b = _batch_inside(g, b) if node.get_bool("transBatchB") and rank(b) > 2 else b
    a = g.swap_last(a) if node.get_bool("transA") and rank(a) > 1 else a
    b = g.swap_last(b) if node.get_bool("transB") and rank(b) > 1 else b
    return mul_scalar(g, matmul(g, a, b), node.get_float("alpha", 1.0))


def _batch_inside(g: Builder, x: Instruction) -> Instruction:
    """Emit x [m, batch..., k] as [batch..., m, k]."""
    last = rank(x) - 1
    return g.transpose(x, (*range(1, last), 0, last))


def matmul_integer(
    g: Builder, a: Instruction, b: Instruction, a_zero: Instruction | None, b_zero: Instruction | None
) -> Instruction:
    """Emit the int32 product of 8-bit matrices minus their zero points.

    A zero point has one element, or one per row of ``a``, or one per column of ``b``.
    """
    if is_zero(g, a_zero) and is_zero(g, b_zero):
        return matmul(g, a, b, "quant_dot")
    a_zero, b_zero = (zero_point(g, *pair) for pair in ((a, a_zero), (b, b_zero)))
    if rank(a_zero) == 1 and a_zero.shape.elements > 1:
        a_zero = g.unsqueeze(a_zero, [1])
    if rank(a) == 0 or rank(b) == 0:
        raise ShapeError("an input has no dimensions")
    return g.matmul(a, b, "integer_dot", (a_zero, b_zero))


def zero_point(g: Builder, x: Instruction, zero: Instruction | None) -> Instruction:
    """Return the zero point of ``x``, 0 if absent."""
    return g.like(0, x) if zero is None else zero


def is_zero(g: Builder, zero: Instruction | None) -> bool:
    """Return whether a zero point is absent or known to be 0."""
    value = None if zero is None else g.constants.value(zero)
    return zero is None or (value is not None and not value.any())


@register("MatMulInteger")
def matmul_integer_node(
    g: Builder,
    node: Node,
    a: Instruction,
    b: Instruction,
    a_zero: Instruction | None = None,
    b_zero: Instruction | None = None,
) -> Instruction:
    """Emit MatMulInteger; zero points are scalars, one per row of A, or one per column of B."""
    return matmul_integer(g, a, b, a_zero, b_zero)


@register("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    g: Builder,
    node: Node,
    a: Instruction,
    b: Instruction,
    a_scale: Instruction,
    b_scale: Instruction,
    a_zero: Instruction | None = None,
    b_zero: Instruction | None = None,
    bias: Instruction | None = None,
) -> Instruction:
    """Emit the integer product times both scales, plus a bias.

    A vector of A's scales or zero points has an element for each column of A; the product is then computed in float32.
    """
    if any(v is not None and rank(v) == 1 and v.shape.elements > 1 for v in (a_scale, a_zero)):
        columns = g.lens(a)[-1]
        for what, v in (("a_scale", a_scale), ("a_zero_point", a_zero)):
            count = 1 if v is None else v.shape.elements
            if count not in (1, columns):
                raise ShapeError(f"input {what!r} has {count} elements, expected 1, or {columns} as A has columns")
        type = a_scale.shape.type
        wide = g.pointwise("mul", _from_zero(g, a, a_zero, type), a_scale)
        product = matmul(g, wide, _from_zero(g, b, b_zero, type))
        scaled = g.pointwise("mul", product, b_scale)
        return scaled if bias is None else g.pointwise("add", scaled, bias)
    return scaled_integer_product(g, a, b, a_scale, b_scale, a_zero, b_zero, bias)


def _from_zero(g: Builder, x: Instruction, zero: Instruction | None, type: Type) -> Instruction:
    """Emit ``x - zero`` in another type; a vector of zero points has an element for each column."""
    wide = g.convert(x, type)
    return wide if zero is None else g.pointwise("sub", wide, g.convert(zero, type))


def scaled_integer_product(
    g: Builder,
    a: Instruction,
    b: Instruction,
    a_scale: Instruction,
    b_scale: Instruction,
    a_zero: Instruction | None,
    b_zero: Instruction | None,
    bias: Instruction | None,
) -> Instruction:
    """Emit `matmul_integer` times both scales, plus a bias; ``b`` may have a scale per column."""
    product = g.convert(matmul_integer(g, a, b, a_zero, b_zero), a_scale.shape.type)
    scaled = g.pointwise("mul", product, g.pointwise("mul", a_scale, b_scale))
    return scaled if bias is None else g.pointwise("add", scaled, bias)


@register("Einsum")
def einsum_node(g: Builder, node: Node, *operands: Instruction) -> Instruction:
    """Emit the node's equation."""
    return einsum(g, node.get_str("equation"), operands, ParseError)
