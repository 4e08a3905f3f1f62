"""A BERT encoder (Devlin et al., 2018), opset 14, fixed shapes, layer norm and GELU in elementary nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bench.models.builder import INT64, GraphBuilder
from bench.models.layers import gelu_erf, gemm, layer_norm_nodes, linear


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    inner: int
    sequence: int
    vocabulary: int


CONFIGS = {
    "full": Config(layers=6, width=768, heads=12, inner=3072, sequence=128, vocabulary=30522),
    "base": Config(layers=12, width=768, heads=12, inner=3072, sequence=128, vocabulary=30522),
    "tiny": Config(layers=2, width=32, heads=4, inner=64, sequence=8, vocabulary=50),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Inputs input_ids, attention_mask (1 keeps), token_type_ids to last_hidden_state, pooler_output."""
    c = CONFIGS[scale]
    g = GraphBuilder("bert", opset=14)
    dims = [batch, c.sequence]
    input_ids = g.input("input_ids", dims, INT64)
    attention_mask = g.input("attention_mask", dims, INT64)
    token_type_ids = g.input("token_type_ids", dims, INT64)

    mask = _additive_mask(g, attention_mask)
    with g.scope("embeddings"):
        x = _embeddings(g, c, input_ids, token_type_ids)
    for i in range(c.layers):
        with g.scope("encoder", f"layer.{i}"):
            x = _layer(g, c, batch, x, mask)
    with g.scope("pooler"):
        first = g.node("Gather", x, g.const(0, np.int64), axis=1)
        with g.scope("dense"):
            pooled = gemm(g, first, c.width, c.width)
        pooled = g.node("Tanh", pooled)

    g.output("last_hidden_state", x, [batch, c.sequence, c.width])
    g.output("pooler_output", pooled, [batch, c.width])
    return g.model()


def _additive_mask(g: GraphBuilder, attention_mask: str) -> str:
    """[batch, keys] of 0 and 1 to [batch, 1, 1, keys] of 0 and the lowest float32."""
    rows = g.node("Unsqueeze", attention_mask, g.ints(1))
    keep = g.node("Cast", g.node("Unsqueeze", rows, g.ints(2)), to=int(onnx.TensorProto.FLOAT))
    return g.node("Mul", g.node("Sub", g.const(1.0), keep), g.const(np.finfo(np.float32).min))


def _embeddings(g: GraphBuilder, c: Config, input_ids: str, token_type_ids: str) -> str:
    words = g.node("Gather", g.weight("word_embeddings.weight", g.normal(c.vocabulary, c.width, std=1.0)), input_ids)
    types = g.node("Gather", g.weight("token_type_embeddings.weight", g.normal(2, c.width, std=0.5)), token_type_ids)
    table = g.weight("position_embeddings.weight", g.normal(max(512, c.sequence), c.width, std=0.5))
    positions = g.node("Gather", table, g.const(np.arange(c.sequence)[None, :], np.int64))
    x = g.node("Add", g.node("Add", words, types), positions)
    with g.scope("LayerNorm"):
        return layer_norm_nodes(g, x, c.width)


def _layer(g: GraphBuilder, c: Config, batch: int, x: str, mask: str) -> str:
    with g.scope("attention"):
        with g.scope("self"):
            context = _self_attention(g, c, batch, x, mask)
        with g.scope("output"):
            with g.scope("dense"):
                context = linear(g, context, c.width, c.width)
            with g.scope("LayerNorm"):
                x = layer_norm_nodes(g, g.node("Add", context, x), c.width)
    with g.scope("intermediate"):
        with g.scope("dense"):
            inner = linear(g, x, c.width, c.inner)
        inner = gelu_erf(g, inner)
    with g.scope("output"):
        with g.scope("dense"):
            outer = linear(g, inner, c.inner, c.width, gain=math.sqrt(2.0))
        with g.scope("LayerNorm"):
            return layer_norm_nodes(g, g.node("Add", outer, x), c.width)


def _self_attention(g: GraphBuilder, c: Config, batch: int, x: str, mask: str) -> str:
    size = c.width // c.heads
    heads = []
    for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        with g.scope(name):
            projected = linear(g, x, c.width, c.width)
        split = g.node("Reshape", projected, g.ints(batch, c.sequence, c.heads, size))
        heads.append(g.node("Transpose", split, perm=perm))
    query, key_t, value = heads
    scores = g.node("Div", g.node("MatMul", query, key_t), g.const(math.sqrt(size)))
    probabilities = g.node("Softmax", g.node("Add", scores, mask), axis=-1)
    context = g.node("Transpose", g.node("MatMul", probabilities, value), perm=[0, 2, 1, 3])
    return g.node("Reshape", context, g.ints(batch, c.sequence, c.width))
