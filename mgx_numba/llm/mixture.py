"""Mixtures of experts: every token uses the few feed-forward networks for which a router has the highest scores.

See `frontends.experts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type
from ..frontends.builder import GraphBuilder
from ..frontends.experts import ROOM, Expert, Mixture
from ..graph.instruction import Instruction
from .onnx_node import deferred_node
from .weights import Weight

if TYPE_CHECKING:
    from .build import DecoderBuilder


def mixture_of_experts(decoder: DecoderBuilder, i: int, x: Instruction) -> Instruction:
    """Emit a layer's mixture of experts.

    Args:
        decoder: the decoder that is being built.
        i: number of the layer.
        x: normalised tokens [batch, sequence, features].
    """
    g, c = decoder.g, decoder.c
    (scores,) = decoder.linear(x, [decoder.needed("router", i)])
    used = c.experts_used
    if not c.normalize_experts:
        scores = g.op("softmax", scores, axis=2)
    both = g.op("topk", scores, k=used, axis=2, largest=1)
    best, places = (g.op("get_tuple_elem", both, index=k) for k in range(2))
    if c.normalize_experts:  # equal to the normalised softmax of all scores
        best = g.op("softmax", best, axis=2)
    flat, places, best = (g.op("reshape", each, dims=(-1, each.shape.dims[2].max)) for each in (x, places, best))
    none = g.op(
        "multibroadcast", g.literal(np.zeros((1, 1), np.float32)), g.op("reshape", scores, dims=(-1, c.experts))
    )
    shares = g.op("scatter_none", none, places, best, axis=1)

    def expert(e: int) -> Expert[GraphBuilder]:
        weights = [_expert(decoder, name, i, e) for name in ("gate", "up", "down")]

        def emit(inner: GraphBuilder, rows: Instruction) -> Instruction:
            linear = decoder.linear.within(inner)
            gate, up = linear(inner.unsqueeze(rows, [0]), weights[:2])
            (y,) = linear(inner.op("mul", decoder.activated(inner, gate), up), weights[2:])
            return inner.op("squeeze", y, axes=(0,))

        return emit

    def zeros(type: Type, kind: type[np.generic]) -> Instruction:
        count = g.op("dimensions_of", flat, start=0, end=1)
        room, even = (g.literal(np.array([n], np.int64)) for n in (ROOM * used, c.experts))
        most = g.pointwise("add", g.pointwise("mul", count, room), g.literal(np.array([c.experts - 1], np.int64)))
        lens = g.op("concat", even, g.pointwise("div", most, even), axis=0)
        shape = Shape.dynamic(type, (c.experts, DynamicDimension(0, UNBOUNDED, symbol="slots")))
        return deferred_node(g, "Expand", [g.literal(np.zeros((1, 1), kind)), lens], [shape], "")[0]

    total = Mixture(g, decoder.inside)(flat, shares, used, [expert(e) for e in range(c.experts)], zeros)
    lens = g.op("dimensions_of", x, start=0, end=3)
    return deferred_node(g, "Reshape", [total, lens], [Shape.dynamic(Type.float_type, x.shape.dims)], "")[0]


def _expert(decoder: DecoderBuilder, name: str, i: int, e: int) -> Weight:
    """Return an expert's matrix, which a file stores separately or stacked with all experts."""
    whole = decoder.weight(f"experts_{name}", i)
    if whole is not None:
        return Weight(np.asarray(whole.array[e]), whole.layout)
    return decoder.needed(f"expert_{name}", i, e)
