"""Rewrite resizing that repeats elements as a broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.dim import exact_quotient, is_symbolic, known_equal, known_same
from ...core.shape import MAX_RANK
from ...ops.resize import nearest_index, source_coordinates
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import rule_pass
from .rules.views import reshaped

SAMPLE = 4
"""Elements of an axis that represent any number: the middle ones are not affected by clamping."""


@rule("resize_nearest", op("resize", some("x")), exact=True)
def repeat_elements(m: Match, b: RewriteBuilder) -> object:
    """``resize[nearest](x)`` by integer factors -> ``reshape(broadcast(unsqueeze(x)))``, channels innermost.

    The channels of [n, c, spatial...] are moved last and back, so that channels-last data is copied in contiguous runs
    and keeps its layout.
    """
    attributes = m.ins.op.attributes()
    old, new = m.x.shape.lens, m.ins.shape.lens
    if attributes["mode"] != "nearest":
        return "elements are interpolated"
    factors = [exact_quotient(b_, a) for a, b_ in zip(old, new)]
    if any(known_equal(n, 0) for n in new) or None in factors:
        return "lengths do not grow by whole factors"
    for axis, (n, out) in enumerate(zip(old, new)):
        scale = attributes["scales"][axis] if attributes["scales"] else None
        if known_equal(n, out) and scale in (None, 1):
            continue
        if not _repeats_evenly(attributes, n, out, scale):
            return "elements are not repeated evenly"
    rank = len(old)
    last = rank > 2 and known_same(old[:2], new[:2])
    if rank + sum(not known_equal(a, b_) for a, b_ in zip(old, new)) > MAX_RANK:
        return "the repeated elements need too many axes"
    order = [0, *range(2, rank), 1] if last else list(range(rank))
    back = [order.index(axis) for axis in range(rank)]
    x = b.transpose(m.x, order)
    split: list[int] = []
    wide: list[int] = []
    for axis in order:
        factor = factors[axis]
        split += [old[axis], 1] if factor > 1 else [old[axis]]
        wide += [old[axis], factor] if factor > 1 else [old[axis]]
    repeated = b.broadcast(reshaped(b, x, split), wide)
    return b.transpose(b.reshape(repeated, [new[axis] for axis in order]), back)


def _repeats_evenly(attributes: Mapping[str, Any], n: int, out: int, scale: float | None) -> bool:
    """Return whether each element of an axis is repeated equally often.

    For a symbolic length a few elements suffice: with a power-of-two factor, coordinates are exact (for lengths below
    2**23, where float32 has halves), so those of successive elements differ by 1.
    """
    mode = attributes["coordinate_transformation_mode"]
    if is_symbolic(n) or is_symbolic(out):
        factor = exact_quotient(out, n)
        if (
            not isinstance(factor, int)
            or factor & (factor - 1)
            or scale not in (None, factor)
            or mode == "align_corners"
        ):
            return False
        n, out = SAMPLE, SAMPLE * factor
    coordinate = source_coordinates(mode, n, out, float(np.float32(out / n if scale is None else scale)))
    return np.array_equal(nearest_index(attributes["nearest_mode"], coordinate, n), np.arange(out) // (out // n))


RewriteResize = rule_pass("rewrite_resize", repeat_elements)
