"""Resizing by repetition of elements, as a broadcast."""

from __future__ import annotations

import numpy as np

from ...core.shape import MAX_RANK
from ...ops.resize import nearest_index, source_coordinates
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import RulePass
from .rules.views import reshaped

__all__ = ["RewriteResize"]


@rule("resize_nearest", op("resize", some("x")), exact=True)
def repeat_elements(m: Match, b: RewriteBuilder) -> object:
    """``resize[nearest](x)`` by whole factors -> ``reshape(spread(unsqueeze(x)))``, channels innermost.

    Of [n, c, spatial...] the channels are moved last before and back after, so that data in channels-last layout is
    copied in runs and keeps its layout.
    """
    attributes = m.ins.op.attributes()
    old, new = m.x.shape.lens, m.ins.shape.lens
    if attributes["mode"] != "nearest":
        return "elements are interpolated"
    if 0 in new or any(b_ % a for a, b_ in zip(old, new)):
        return "lengths do not grow by whole factors"
    scales = attributes["scales"] or tuple(b_ / a for a, b_ in zip(old, new))
    for n, out, scale in zip(old, new, scales):
        if n == out and scale == 1:
            continue
        coordinate = source_coordinates(attributes["coordinate_transformation_mode"], n, out, float(np.float32(scale)))
        if not np.array_equal(nearest_index(attributes["nearest_mode"], coordinate, n), np.arange(out) // (out // n)):
            return "elements are not repeated evenly"
    rank = len(old)
    last = rank > 2 and old[:2] == new[:2]
    if rank + sum(a != b_ for a, b_ in zip(old, new)) > MAX_RANK:
        return "the repeated elements need too many axes"
    order = [0, *range(2, rank), 1] if last else list(range(rank))
    back = [order.index(axis) for axis in range(rank)]
    x = b.transpose(m.x, order)
    split: list[int] = []
    wide: list[int] = []
    for axis in order:
        factor = new[axis] // old[axis]
        split += [old[axis], 1] if factor > 1 else [old[axis]]
        wide += [old[axis], factor] if factor > 1 else [old[axis]]
    repeated = b.broadcast(reshaped(b, x, split), wide)
    return b.transpose(b.reshape(repeated, [new[axis] for axis in order]), back)


class RewriteResize(RulePass):
    """Nearest-neighbour enlargement by whole factors; other resizes stay."""

    name = "rewrite_resize"
    rules = (repeat_elements,)
