"""A three-layer perceptron: Gemm and Relu."""

from __future__ import annotations

import math
from itertools import pairwise

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import gemm

WIDTHS = {"full": (784, 2048, 2048, 10), "tiny": (12, 24, 24, 10)}


def build(batch: int, scale: str) -> onnx.ModelProto:
    widths = WIDTHS[scale]
    g = GraphBuilder("mlp", opset=17)
    x = g.input("input", [batch, widths[0]])
    last = len(widths) - 2
    for i, (features_in, features_out) in enumerate(pairwise(widths)):
        with g.scope("layers", str(2 * i)):
            x = gemm(g, x, features_in, features_out, gain=1.0 if i == last else math.sqrt(2.0))
        if i < last:
            with g.scope("layers", str(2 * i + 1)):
                x = g.node("Relu", x)
    g.output("logits", x, [batch, widths[-1]])
    return g.model()
