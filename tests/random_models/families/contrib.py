"""Operators of the domain com.microsoft, which exporters and ONNX Runtime's own optimiser write."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .matmul import epilogue
from .registry import step

__all__ = []

DOMAIN = "com.microsoft"


def _single(v: Value) -> bool:
    return v.type == np.float32 and v.rank > 0 and v.finite


def _matrix(v: Value) -> bool:
    return _single(v) and v.rank >= 2


@step()
def fused_matmul(b: Builder) -> Any:
    x = b.tensor(_matrix, np.float32)
    if not _matrix(x):
        return None
    left, right = b.integer(0, 1), b.integer(0, 1)
    k, n = x.lens[-2] if left else x.lens[-1], b.pick((1, 4, 9, 16))
    y = b.new((*x.lens[:-2], *((n, k) if right else (k, n))), x.type)
    alpha = b.pick((0.5, 1.0, 2.0))
    return epilogue(b, b.node("FusedMatMul", [x, y], domain=DOMAIN, transA=left, transB=right, alpha=alpha))


@step()
def activation(b: Builder) -> Any:
    x = b.tensor(_single, np.float32)
    if not _single(x):
        return None
    op = b.pick(("BiasGelu", "FastGelu", "QuickGelu", "Gelu"))
    bias = [b.new(x.lens[-1:], x.type, special=False)] if op in ("BiasGelu", "FastGelu") else []
    return b.node(op, [x, *bias], domain=DOMAIN, alpha=b.pick((1.0, 1.702)) if op == "QuickGelu" else None)


@step()
def rotary_embedding(b: Builder) -> Any:
    batch, heads, steps, depth = b.integer(1, 2), b.integer(1, 2), b.integer(1, 4), b.pick((2, 4, 8))
    x = b.new((batch, heads, steps, depth), np.float32, special=False)
    angles = np.outer(np.arange(6), b.rng.uniform(0.1, 1, depth // 2))
    tables = [b.constant(f(angles), np.float32) for f in (np.cos, np.sin)]
    if b.chance(2):
        positions = b.constant([b.integer(0, 2)], np.int64)
    else:
        positions = b.constant(b.rng.integers(0, 6, (batch, steps)), np.int64)
    return b.node("RotaryEmbedding", [x, positions, *tables], domain=DOMAIN, interleaved=b.integer(0, 1))


@step()
def quantized_pointwise(b: Builder) -> Any:
    """Sums, products, sigmoids and concatenations of quantised values.

    Zero points are even: ONNX Runtime rounds after it has added them, which decides ties otherwise.
    """
    type = b.pick((np.uint8, np.int8))
    lens = (b.integer(1, 2), b.pick((1, 3, 8)), 4, b.pick((4, 5)))

    def one() -> list[Value]:
        low = 0 if np.dtype(type).kind == "u" else -100
        x = b.constant(b.rng.integers(low, 100, lens), type)
        return [x if b.outer is not None else b.input(x.array), *scale()]

    def scale() -> list[Value]:
        return [b.constant(b.pick((0.0625, 0.1, 0.25)), np.float32), b.constant(2 * b.integer(0, 4), type)]

    op = b.pick(("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat"))
    if op in ("QLinearAdd", "QLinearMul"):
        return b.node(op, [*one(), *one(), *scale()], domain=DOMAIN)
    if op == "QLinearConcat":
        return b.node(op, [*scale(), *one(), *one()], domain=DOMAIN, axis=b.integer(0, 3))
    return b.node(op, [*one(), *scale()], domain=DOMAIN, alpha=0.25 if op == "QLinearLeakyRelu" else None)


@step()
def matmul_of_few_bits(b: Builder) -> Any:
    """Weights of 4 bits in blocks, each with a scale."""
    block, n = b.pick((16, 32)), b.pick((1, 4, 9))
    k = block * b.integer(1, 2)
    x = b.new((b.integer(1, 3), k), np.float32, special=False)
    blocks = k // block
    w = b.constant(b.rng.integers(0, 256, (n, blocks, block // 2)), np.uint8)
    scales = b.constant(b.rng.uniform(0.01, 0.2, (n, blocks)), np.float32)
    zeros = [b.constant(b.rng.integers(0, 256, (n, (blocks + 1) // 2)), np.uint8)] if b.chance(2) else []
    sizes = {"K": k, "N": n, "bits": 4, "block_size": block}
    return b.node("MatMulNBits", [x, w, scales, *zeros], domain=DOMAIN, **sizes)


@step()
def dynamic_product(b: Builder) -> Any:
    x = b.tensor(_matrix, np.float32)
    if not _matrix(x) or not np.any(x.array):
        return None
    n = b.pick((1, 4, 9))
    w = b.constant(b.rng.integers(0, 9, (x.lens[-1], n)), np.uint8)
    made = b.outputs("DynamicQuantizeLinear", [x], 3)
    if not made:
        return None
    q, scale, zero = made
    weight_scale = b.constant(b.rng.uniform(0.01, 0.1, (n,) if b.chance(2) else ()), np.float32)
    inputs = [q, w, scale, weight_scale, zero, b.constant(b.integer(0, 5), np.uint8)]
    return b.node("MatMulIntegerToFloat", inputs, domain=DOMAIN)
