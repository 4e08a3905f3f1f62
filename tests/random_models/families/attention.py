"""Attention as exporters write it, and as an operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder
from .registry import step

__all__ = []


@step(2)
def attention_by_hand(b: Builder) -> Any:
    """Scores, a scale before or after, a mask that leaves something, softmax, and values."""
    heads = (b.integer(1, 2), b.integer(1, 3))
    rows, columns, depth = b.pick((1, 4, 7)), b.pick((1, 5, 8)), b.pick((2, 4, 8))
    type = b.pick((np.float32, np.float32, np.float32, np.float16, np.float64))
    q, v = b.new((*heads, rows, depth), type, False), b.new((*heads, columns, b.pick((3, 4, 8))), type, False)
    if b.chance(2):
        k = b.new((*heads, depth, columns), type, False)
    else:
        made = b.node("Transpose", [b.new((*heads, columns, depth), type, False)], perm=[0, 1, 3, 2])
        if made is None:
            return None
        k = made
    scale = b.constant(1 / np.sqrt(depth), type)
    scaled = b.node("Mul", [q, scale]) if b.chance(3) else q
    scores = scaled and b.node("MatMul", [scaled, k])
    if scores and scaled is q:
        scores = (
            b.node("Div", [scores, b.constant(np.sqrt(depth), type)]) if b.chance(2) else b.node("Mul", [scores, scale])
        )
    if scores and b.chance(2):
        mask = b.rng.integers(0, 2, (b.integer(1, 2) if b.chance(3) and heads[0] == 2 else 1, 1, rows, columns))
        mask[..., 0] |= 0 if b.chance(4) else 1  # else some rows are wholly masked
        if b.chance(2):
            scores = b.node("Add", [scores, b.constant(np.where(mask, 0, -1e4 if b.chance(2) else -np.inf), type)])
        else:
            scores = b.node("Where", [b.constant(mask, np.bool_), scores, b.constant(-1e4, type)])
    weights = scores and b.node("Softmax", [scores], axis=-1 if b.chance(2) else 3)
    return weights and b.node("MatMul", [weights, v])


@step()
def attention(b: Builder) -> Any:
    """The operator of operator set 23, with grouped heads, masks, causality, soft caps and caches."""
    if b.opset < 23:
        return None
    batch, kv, group = b.integer(1, 2), b.integer(1, 2), b.integer(1, 2)
    rows, columns, depth = b.pick((1, 4, 7)), b.pick((4, 5, 8)), b.pick((2, 4, 8))
    q = b.new((batch, kv * group, rows, depth), np.float32, False)
    k, v = (b.new((batch, kv, columns, d), np.float32, False) for d in (depth, b.pick((3, 4))))
    mask = None
    if b.chance(2):
        array = b.rng.integers(0, 2, (rows, columns))
        array[:, 0] |= 0 if b.chance(4) else 1
        mask = b.constant(array, np.bool_) if b.chance(2) else b.constant(np.where(array, 0, -np.inf), np.float32)
    return b.node(
        "Attention", [q, k, v, mask], is_causal=b.integer(0, 1), softcap=b.pick((None, None, 2.0)),
        scale=b.pick((None, 0.5)),
    )  # fmt: skip


@step()
def multi_head_attention(b: Builder) -> Any:
    batch, heads, depth = b.integer(1, 2), b.integer(1, 3), b.pick((2, 4, 8))
    rows, columns = b.pick((1, 4, 7)), b.pick((4, 5, 8))
    parts = [b.new((batch, n, heads * depth), np.float32, False) for n in (rows, columns, columns)]
    return b.node("MultiHeadAttention", parts, domain="com.microsoft", num_heads=heads)
