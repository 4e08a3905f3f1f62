"""Matrix products: ``dot`` and ``quant_dot`` with NumPy's rules for axes, ``gemm``, and ``einsum``."""

from __future__ import annotations

from ...errors import OperatorError
from ..einsum import einsum
from ..instruction import Instruction
from .base import MacroBuilder, macro


@macro("dot", "quant_dot", inputs=(2, 2))
def dot(e: MacroBuilder, a: Instruction, b: Instruction) -> Instruction:
    """NumPy's ``matmul``: vectors are made matrices, outer axes broadcast."""
    return e.matmul(a, b, e.name)


@macro("gemm", inputs=(2, 3), alpha=1.0, beta=1.0, transA=False, transB=False)
def gemm(
    e: MacroBuilder,
    a: Instruction,
    b: Instruction,
    c: Instruction | None = None,
    *,
    alpha: float,
    beta: float,
    transA: bool,
    transB: bool,
) -> Instruction:
    """``alpha * a' * b' + beta * c``, ``c`` broadcast to the product (ONNX Gemm)."""
    type = a.shape.type
    a, b = (e.swap_last(x) if t else x for x, t in ((a, transA), (b, transB)))
    if alpha != 1:
        a = e.number("mul", a, alpha)
    product = e.op("dot", a, b)
    if c is None or beta == 0:
        return product
    c = c if beta == 1 else e.number("mul", c, beta)
    return e.convert(e.pointwise("add", product, c), type)


MOST_INPUTS = 26  # letters of the alphabet


@macro("einsum", inputs=(1, MOST_INPUTS), equation="")
def einsum_macro(e: MacroBuilder, *operands: Instruction, equation: str) -> Instruction:
    """Compute the equation (NumPy's notation, ellipsis included), operands contracted pairwise."""
    return einsum(e, equation, operands, lambda message: OperatorError(f"macro einsum: {message}"))
