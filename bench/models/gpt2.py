"""A GPT-2 decoder step (Radford et al., 2019) with a key/value cache, opset 17, exported with dynamic axes.

Reshape targets and the causal slice are computed by Shape, Gather, Unsqueeze and Concat nodes, although the
inputs' shapes are given here: folding them is the compiler's work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bench.models.builder import INT64, GraphBuilder
from bench.models.layers import gelu_tanh, layer_norm_op


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    past: int
    tokens: int
    context: int
    vocabulary: int


CONFIGS = {
    "full": Config(layers=6, width=768, heads=12, past=64, tokens=1, context=1024, vocabulary=50257),
    "tiny": Config(layers=2, width=32, heads=4, past=5, tokens=3, context=32, vocabulary=60),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Inputs input_ids, past_key_values.*, attention_mask over past and new positions, position_ids; outputs
    logits, present.*.
    """
    c = CONFIGS[scale]
    size = c.width // c.heads
    total = c.past + c.tokens
    g = GraphBuilder("gpt2", opset=17)
    input_ids = g.input("input_ids", [batch, c.tokens], INT64)
    past = [
        [g.input(f"past_key_values.{i}.{part}", [batch, c.heads, c.past, size]) for part in ("key", "value")]
        for i in range(c.layers)
    ]
    attention_mask = g.input("attention_mask", [batch, total], INT64)
    position_ids = g.input("position_ids", [batch, c.tokens], INT64)

    with g.scope("transformer"):
        table = g.weight("wte.weight", g.normal(c.vocabulary, c.width, std=0.05))
        positions = g.weight("wpe.weight", g.normal(c.context, c.width, std=0.02))
        x = g.node("Add", g.node("Gather", table, input_ids), g.node("Gather", positions, position_ids))
        mask = _additive_mask(g, attention_mask)
        causal = g.weight("attn.bias", np.tril(np.ones((1, 1, c.context, c.context), dtype=np.bool_)))
        present = []
        for i in range(c.layers):
            with g.scope(f"h.{i}"):
                x, key, value = _block(g, c, x, mask, causal, past[i])
            present.append((key, value))
        with g.scope("ln_f"):
            x = layer_norm_op(g, x, c.width)
    with g.scope("lm_head"):
        logits = g.node("MatMul", x, g.node("Transpose", table, perm=[1, 0]))
    g.output("logits", logits, [batch, c.tokens, c.vocabulary])
    for i, (key, value) in enumerate(present):
        g.output(f"present.{i}.key", key, [batch, c.heads, total, size])
        g.output(f"present.{i}.value", value, [batch, c.heads, total, size])
    return g.model()


def _additive_mask(g: GraphBuilder, attention_mask: str) -> str:
    shape = g.node("Concat", g.ints(-1), _unsqueezed_dim(g, attention_mask, 1), axis=0)
    flat = g.node("Reshape", attention_mask, shape)
    rows = g.node("Unsqueeze", g.node("Unsqueeze", flat, g.ints(1)), g.ints(2))
    keep = g.node("Cast", rows, to=int(onnx.TensorProto.FLOAT))
    return g.node("Mul", g.node("Sub", g.const(1.0), keep), g.const(np.finfo(np.float32).min))


def _dim(g: GraphBuilder, x: str, axis: int) -> str:
    """`x.size(axis)`: Shape and Gather, an int64 scalar."""
    return g.node("Gather", g.node("Shape", x), g.const(axis, np.int64), axis=0)


def _unsqueezed_dim(g: GraphBuilder, x: str, axis: int) -> str:
    return g.node("Unsqueeze", _dim(g, x, axis), g.ints(0))


def _like(g: GraphBuilder, x: str, *tail: int) -> str:
    """The target shape [x.size(0), x.size(1), *tail]."""
    leading = [_unsqueezed_dim(g, x, 0), _unsqueezed_dim(g, x, 1)]
    return g.node("Concat", *leading, *(g.ints(dim) for dim in tail), axis=0)


def _conv1d(g: GraphBuilder, x: str, features_in: int, features_out: int, gain: float = 1.0) -> str:
    """The library's Conv1D: flatten to a matrix, Gemm with an untransposed weight, restore leading dims."""
    weight = g.weight("weight", g.normal(features_in, features_out, std=gain / math.sqrt(features_in)))
    bias = g.weight("bias", g.normal(features_out, std=0.02))
    shape = _like(g, x, features_out)
    flat = g.node("Reshape", x, g.ints(-1, features_in))
    return g.node("Reshape", g.node("Gemm", flat, weight, bias, alpha=1.0, beta=1.0), shape)


def _block(g: GraphBuilder, c: Config, x: str, mask: str, causal: str, past: list[str]) -> tuple[str, str, str]:
    """One pre-norm transformer block; returns its output and the present key and value."""
    with g.scope("ln_1"):
        normed = layer_norm_op(g, x, c.width)
    with g.scope("attn"):
        attended, key, value = _attention(g, c, normed, mask, causal, past)
    x = g.node("Add", attended, x)
    with g.scope("ln_2"):
        normed = layer_norm_op(g, x, c.width)
    with g.scope("mlp"):
        with g.scope("c_fc"):
            inner = _conv1d(g, normed, c.width, 4 * c.width)
        with g.scope("act"):
            inner = gelu_tanh(g, inner)
        with g.scope("c_proj"):
            outer = _conv1d(g, inner, 4 * c.width, c.width)
    return g.node("Add", x, outer), key, value


def _attention(g: GraphBuilder, c: Config, x: str, mask: str, causal: str, past: list[str]) -> tuple[str, str, str]:
    size = c.width // c.heads
    with g.scope("c_attn"):
        qkv = _conv1d(g, x, c.width, 3 * c.width)
    parts = g.nodes("Split", qkv, g.ints(c.width, c.width, c.width), count=3, axis=2)
    query, key, value = (
        g.node("Transpose", g.node("Reshape", part, _like(g, part, c.heads, size)), perm=[0, 2, 1, 3]) for part in parts
    )
    key = g.node("Concat", past[0], key, axis=-2)
    value = g.node("Concat", past[1], value, axis=-2)
    scores = g.node("MatMul", query, g.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g.node("Div", scores, g.const(math.sqrt(size)))
    allowed = _causal_slice(g, query, key, causal)
    scores = g.node("Where", allowed, scores, g.const(np.finfo(np.float32).min))
    probabilities = g.node("Softmax", g.node("Add", scores, mask), axis=-1)
    context = g.node("Transpose", g.node("MatMul", probabilities, value), perm=[0, 2, 1, 3])
    merged = g.node("Reshape", context, _like(g, context, c.width))
    with g.scope("c_proj"):
        return _conv1d(g, merged, c.width, c.width), key, value


def _causal_slice(g: GraphBuilder, query: str, key: str, causal: str) -> str:
    """`bias[:, :, keys - queries : keys, :keys]`."""
    queries = _dim(g, query, 2)
    keys = _dim(g, key, 2)
    start = g.node("Unsqueeze", g.node("Sub", keys, queries), g.ints(0))
    end = g.node("Unsqueeze", keys, g.ints(0))
    rows = g.node("Slice", causal, start, end, g.ints(2), g.ints(1))
    return g.node("Slice", rows, g.ints(0), end, g.ints(3), g.ints(1))
