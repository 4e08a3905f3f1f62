"""Mixtures of experts: every token uses the few feed-forward networks for which a router has the highest scores.

All experts are computed for all tokens, and those that a token does not use have weight 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.types import Type
from ..graph.instruction import Instruction
from .weights import Weight


def mixture_of_experts(decoder: Any, i: int, x: Instruction) -> Instruction:
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
    total: Instruction | None = None
    for e in range(c.experts):
        here = g.pointwise("equal", places, g.literal(e, places.shape.type))
        share = g.reduce("reduce_sum", g.pointwise("mul", g.convert(here, Type.float_type), best), [2])
        gate, up, down = (_expert(decoder, name, i, e) for name in ("gate", "up", "down"))
        inner, outer = decoder.linear(x, [gate, up])
        (y,) = decoder.linear(g.op("mul", decoder.activated(inner), outer), [down])
        y = g.pointwise("mul", y, share)
        total = y if total is None else g.op("add", total, y)
    assert total is not None
    return total


def _expert(decoder: Any, name: str, i: int, e: int) -> Weight:
    """Return a matrix of an expert, which a file may have alone or among those of all experts."""
    whole = decoder.weight(f"experts_{name}", i)
    if whole is not None:
        return Weight(np.asarray(whole.array[e]), whole.layout)
    return decoder.needed(f"expert_{name}", i, e)
