"""Operators of ONNX Runtime that differ from ONNX's only in their inputs; also distances and inverses.

com.microsoft: CDist ExpandDims FusedGemm Inverse NhwcMaxPool Unique.
"""

from __future__ import annotations

from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .builder import Builder, rank
from .convolution import fused_activation
from .matmul import gemm_of
from .node import Node
from .pooling import pool_mode
from .registry import MICROSOFT, register


@register("FusedGemm", domain=MICROSOFT)
def fused_gemm(g: Builder, node: Node, a: Instruction, b: Instruction, c: Instruction | None = None) -> Instruction:
    """Emit Gemm and an activation."""
    params = [
        node.get_float(name) for name in ("activation_alpha", "activation_beta", "activation_gamma") if node.has(name)
    ]
    return fused_activation(g, gemm_of(g, node, a, b, c), node.get_str("activation", ""), params)


@register("ExpandDims", domain=MICROSOFT)
def expand_dims(g: Builder, node: Node, x: Instruction, axis: Instruction) -> Instruction:
    """Insert an axis of length 1 at a constant position."""
    return g.unsqueeze(x, [g.axis(g.int_value(axis, "axis"), rank(x) + 1)])


@register("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit max pooling of [n, spatial..., c]."""
    last = rank(x) - 1
    y = pool_mode(g, node, g.transpose(x, [0, last, *range(1, last)]), "max")[0]
    return g.transpose(y, [0, *range(2, last + 1), 1])


@register("Unique", domain=MICROSOFT)
def unique_contrib(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit a vector's distinct elements by first occurrence, each element's index among them, and counts."""
    if rank(x) != 1:
        raise ShapeError(f"the input has {rank(x)} dimensions, expected 1")
    result = g.op("unique", x, axis=None, sorted=False)
    return [g.op("get_tuple_elem", result, index=k) for k in (0, 2, 3)]


@register("Inverse", domain=MICROSOFT)
def inverse(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the inverses of the matrices in the last two axes."""
    return g.op("inverse", x)


@register("CDist", domain=MICROSOFT)
def cdist(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit the distances [m, n] between the rows of two matrices [m, k] and [n, k]."""
    metric = node.get_str("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError(f"attribute 'metric' is {metric!r}; sqeuclidean and euclidean are supported")
    if (rank(a), rank(b)) != (2, 2) or g.lens(a)[1] != g.lens(b)[1]:
        raise ParseError(f"inputs are {a.shape} and {b.shape}, expected matrices of rows of equal lengths")
    # |a|^2 - 2 ab + |b|^2, as in ONNX Runtime; equal rows may give a value slightly below 0
    squares = [g.reduce("reduce_sum", g.op("mul", x, x), [1]) for x in (a, b)]
    product = mul_scalar(g, g.op("dot", a, g.swap_last(b)), -2.0)
    total = g.pointwise("add", g.pointwise("add", product, squares[0]), g.swap_last(squares[1]))
    total = g.pointwise("max", total, g.like(0, total))
    return g.op("sqrt", total) if metric == "euclidean" else total
