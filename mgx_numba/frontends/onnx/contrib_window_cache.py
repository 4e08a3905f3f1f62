"""GroupQueryAttention over a cache that holds the last positions alone (``sliding_window_cache``)."""

from __future__ import annotations

import numpy as np

from ...core.dim import known_less
from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .attention import Mask, attend, merge_heads, positions
from .builder import Builder
from .cached_tokens import Spans, score_scale, with_sink
from .node import Node


def attend_window_cache(
    g: Builder,
    node: Node,
    new: tuple[Instruction, Instruction, Instruction],
    past: tuple[Instruction, Instruction],
    spans: Spans,
    extras: tuple[Instruction | None, Instruction | None],
) -> list[Instruction]:
    """Emit attention to a window of positions, and caches of their capacity that hold the last of them from row 0 on.

    Of ``n`` tokens a cache of capacity c holds the last ``n - g * ceil((n - c) / g)``, at most n, for g = c - window +
    1: g positions leave it at a time.

    Args:
        g: the builder.
        node: the node.
        new: queries, keys and values of the new tokens, [b, heads, s, d].
        past: caches [b, kv_heads, c, d].
        spans: positions of the new tokens.
        extras: bias of scores by absolute position, and sink.
    """
    q, k, v = new
    bias, sink = extras
    window, capacity = node.get_int("local_window_size", -1), g.lens(past[0])[2]
    if window < 1 or known_less(capacity, window):
        raise ParseError(f"local_window_size is {window}, expected 1 to the capacity {capacity} of the window's cache")
    (b, heads, s, d), width = g.lens(q), capacity + g.lens(q)[2]
    number = g.literal
    before = _held(g, spans.start, capacity, window)
    # Row i of the old cache is of position start - before + i, row i of the new tokens of start + i.
    place = positions(g, width, 1)
    is_old = g.pointwise("less", place, number(capacity, Type.int64_type))
    old = g.pointwise("add", g.pointwise("sub", spans.start, before), place)
    fresh = g.pointwise("add", spans.start, g.pointwise("sub", place, number(capacity, Type.int64_type)))
    at = g.pointwise("where", is_old, old, fresh)
    valid = g.pointwise("where", is_old, g.pointwise("less", at, spans.start), g.pointwise("less", at, spans.ends))
    whole = [g.op("concat", cache, rows, axis=2) for cache, rows in zip(past, (k, v))]
    keys_at, queries = g.reshape(at, (b, 1, 1, width)), g.reshape(spans.tokens, (b, 1, s, 1))
    mask = Mask(g.reshape(valid, (b, 1, 1, width)))
    mask.restrict(g, g.pointwise("less_or_equal", keys_at, queries))
    mask.restrict(g, g.pointwise("greater", keys_at, g.pointwise("sub", queries, g.literal(np.int64(window)))))
    if bias is not None:
        lens = g.lens(bias)
        column = g.pointwise("min", keys_at, number(lens[3] - 1, Type.int64_type))
        column = g.pointwise("max", column, g.like(0, keys_at))
        spread = (b, lens[1], s, lens[3])
        index = g.broadcast(column, (b, lens[1], s, width))
        mask.add(g, g.op("gather_elements", g.broadcast(bias, spread), index, axis=3))
    if sink is None and node.get_int("smooth_softmax", 0) > 0:
        sink = g.broadcast(g.literal(0.0, Type.float_type), (heads,))
    zeros = g.reshape(valid, (b, 1, width, 1))
    keys, values = whole[0], g.pointwise("where", zeros, whole[1], g.like(0, whole[1]))
    if sink is not None:
        keys, values = with_sink(g, q, keys, values, mask, sink)
    y = attend(g, q, keys, values, score_scale(node, d), mask, node.get_float("softcap", 0.0))
    after = _held(g, spans.ends, capacity, window)
    row = g.pointwise("add", g.pointwise("sub", spans.ends, after), positions(g, capacity, 1))
    from_old = g.pointwise("less", row, spans.start)
    source = g.pointwise(
        "where", from_old,
        g.pointwise("add", g.pointwise("sub", row, spans.start), before),
        g.pointwise("add", g.pointwise("sub", row, spans.start), number(capacity, Type.int64_type)),
    )  # fmt: skip
    source = g.pointwise("max", g.pointwise("min", source, number(width - 1, Type.int64_type)), g.like(0, source))
    caches = []
    for x in whole:
        _, shared, _, features = g.lens(x)
        index = g.broadcast(g.reshape(source, (b, 1, capacity, 1)), (b, shared, capacity, features))
        caches.append(g.op("gather_elements", x, index, axis=2))
    return [merge_heads(g, y), *caches]


def _held(g: Builder, tokens: Instruction, capacity: int, window: int) -> Instruction:
    """Emit how many of ``tokens`` positions [b, 1] the cache holds."""
    step = capacity - window + 1
    over = g.pointwise("sub", tokens, g.literal(capacity, Type.int64_type))
    over = g.pointwise("max", over, g.like(0, over))
    rounded = g.pointwise("add", over, g.literal(step - 1, Type.int64_type))
    gone = g.pointwise("div", rounded, g.literal(step, Type.int64_type))
    return g.pointwise("sub", tokens, g.pointwise("mul", gone, g.literal(step, Type.int64_type)))
