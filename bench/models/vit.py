"""A vision transformer (Dosovitskiy et al., 2020), ViT-Base/16 with half its layers, exported at opset 17."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import conv, gelu_erf, gemm, layer_norm_op, linear


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    image: int
    patch: int
    classes: int

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


CONFIGS = {
    "full": Config(layers=6, width=768, heads=12, image=224, patch=16, classes=1000),
    "tiny": Config(layers=2, width=32, heads=4, image=16, patch=4, classes=10),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input pixel_values [batch, 3, image, image]; output logits [batch, classes]."""
    c = CONFIGS[scale]
    g = GraphBuilder("vit", opset=17)
    x = g.input("pixel_values", [batch, 3, c.image, c.image])
    with g.scope("patch_embed"):
        x = _patches(g, c, batch, x)
    token = g.weight("cls_token", g.normal(1, 1, c.width, std=0.5))
    token = g.node("Expand", token, g.ints(batch, 1, c.width))
    x = g.node("Concat", token, x, axis=1)
    x = g.node("Add", x, g.weight("pos_embed", g.normal(1, c.patches + 1, c.width, std=0.5)))
    for i in range(c.layers):
        with g.scope("blocks", f"blocks.{i}"):
            x = _block(g, c, batch, x)
    with g.scope("norm"):
        x = layer_norm_op(g, x, c.width, epsilon=1e-6)
    first = g.node("Gather", x, g.const(0, np.int64), axis=1)
    with g.scope("head"):
        logits = gemm(g, first, c.width, c.classes)
    g.output("logits", logits, [batch, c.classes])
    return g.model()


def _patches(g: GraphBuilder, c: Config, batch: int, x: str) -> str:
    with g.scope("proj"):
        x = conv(g, x, 3, c.width, c.patch, stride=c.patch, padding=0, gain=1.0)
    flat = g.node("Reshape", x, g.ints(batch, c.width, c.patches))
    return g.node("Transpose", flat, perm=[0, 2, 1])


def _block(g: GraphBuilder, c: Config, batch: int, x: str) -> str:
    with g.scope("norm1"):
        normed = layer_norm_op(g, x, c.width, epsilon=1e-6)
    with g.scope("attn"):
        attended = _attention(g, c, batch, normed)
    x = g.node("Add", x, attended)
    with g.scope("norm2"):
        normed = layer_norm_op(g, x, c.width, epsilon=1e-6)
    with g.scope("mlp"):
        with g.scope("fc1"):
            inner = linear(g, normed, c.width, 4 * c.width)
        with g.scope("act"):
            inner = gelu_erf(g, inner)
        with g.scope("fc2"):
            outer = linear(g, inner, 4 * c.width, c.width)
    return g.node("Add", x, outer)


def _attention(g: GraphBuilder, c: Config, batch: int, x: str) -> str:
    """Fused qkv projection unbound on its leading axis; query and key each scaled by size ** -0.25."""
    size = c.width // c.heads
    tokens = c.patches + 1
    with g.scope("qkv"):
        qkv = linear(g, x, c.width, 3 * c.width)
    qkv = g.node("Reshape", qkv, g.ints(batch, tokens, 3, c.heads, size))
    qkv = g.node("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    parts = g.nodes("Split", qkv, g.ints(1, 1, 1), count=3, axis=0)
    query, key, value = (g.node("Squeeze", part, g.ints(0)) for part in parts)
    key_t = g.node("Transpose", key, perm=[0, 1, 3, 2])
    root = g.const(1.0 / math.sqrt(math.sqrt(size)))
    scores = g.node("MatMul", g.node("Mul", query, root), g.node("Mul", key_t, root))
    context = g.node("MatMul", g.node("Softmax", scores, axis=-1), value)
    context = g.node("Transpose", context, perm=[0, 2, 1, 3])
    context = g.node("Reshape", context, g.ints(batch, tokens, c.width))
    with g.scope("proj"):
        return linear(g, context, c.width, c.width)
