"""Matrix products: ``dot`` and ``quant_dot`` with NumPy's rules for axes, and ``gemm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...core.shape import same_lengths
from .base import MacroBuilder, macro

if TYPE_CHECKING:
    from ...graph.instruction import Instruction


@macro("dot", "quant_dot", inputs=(2, 2))
def dot(e: MacroBuilder, a: Instruction, b: Instruction) -> Instruction:
    """NumPy's ``matmul``: vectors are made matrices, outer axes broadcast."""
    if not a.shape.ndim or not b.shape.ndim:
        raise e.fail("an input has no axes")
    row, column = a.shape.ndim == 1, b.shape.ndim == 1
    a = e.op("unsqueeze", a, axes=(0,)) if row else a
    b = e.op("unsqueeze", b, axes=(1,)) if column else b
    if a.shape.is_dynamic or b.shape.is_dynamic:
        if not same_lengths(a.shape.dims[:-2], b.shape.dims[:-2]):
            a, b = e.op("broadcast_for_dot", a, b), e.op("broadcast_for_dot", b, a)
    else:
        try:
            outer = np.broadcast_shapes(a.shape.lens[:-2], b.shape.lens[:-2])
        except ValueError:
            raise e.fail(f"outer axes do not broadcast: {a.shape}; {b.shape}") from None
        a, b = (e.broadcast(x, (*outer, *x.shape.lens[-2:])) for x in (a, b))
    result = e.op(e.name, a, b)
    last = result.shape.ndim - 1
    gone = (last - 1,) * row + (last,) * column
    return e.op("squeeze", result, axes=gone) if gone else result


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
    a, b = (swap_last(e, x) if t else x for x, t in ((a, transA), (b, transB)))
    if alpha != 1:
        a = e.number("mul", a, alpha)
    product = e.op("dot", a, b)
    if c is None or beta == 0:
        return product
    c = c if beta == 1 else e.number("mul", c, beta)
    return e.convert(e.pointwise("add", product, c), type)


def swap_last(e: MacroBuilder, x: Instruction) -> Instruction:
    """``x`` with its last two axes exchanged."""
    order = list(range(x.shape.ndim))
    if len(order) < 2:
        raise e.fail(f"an input to transpose has fewer than two axes: {x.shape}")
    order[-2:] = order[-1], order[-2]
    return e.op("transpose", x, permutation=tuple(order))
