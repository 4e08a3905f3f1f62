"""ONNX Runtime's attention over a key and value cache with groups of query heads.

com.microsoft: GroupQueryAttention, also over a cache of the last positions alone (``sliding_window_cache``).
"""

from __future__ import annotations

import numpy as np

from ...core.dim import Dim, known_equal, known_less, maximum
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .attention import Mask, attend, merge_heads
from .builder import Builder, rank
from .cached_tokens import (
    CacheFormat,
    Spans,
    cache_formats,
    grouped,
    in_float,
    is_known_prompt,
    is_prompt,
    normalized,
    rotated,
    score_scale,
    spans_of,
    with_sink,
)
from .deferred import declared_lengths
from .node import Node
from .registry import MICROSOFT, register


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
    place = g.iota(width, 1, 2)
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
    row = g.pointwise("add", g.pointwise("sub", spans.ends, after), g.iota(capacity, 1, 2))
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


@register("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None = None,
    value: Instruction | None = None,
    past_key: Instruction | None = None,
    past_value: Instruction | None = None,
    last: Instruction | None = None,
    total: Instruction | None = None,
    cosine: Instruction | None = None,
    sine: Instruction | None = None,
    places: Instruction | None = None,
    attention_bias: Instruction | None = None,
    sink: Instruction | None = None,
    k_scale: Instruction | None = None,
    v_scale: Instruction | None = None,
    q_norm: Instruction | None = None,
    k_norm: Instruction | None = None,
    query_lengths: Instruction | None = None,
) -> list[Instruction]:
    """Emit attention over caches [b, kv_heads, t, d]; ``seqlens_k`` has the last position of each sequence.

    The caches keep their length if new tokens fit (a shared buffer); otherwise they grow to ``total_sequence_length``.
    If a run gives that number, and the model declares caches of one length, a total that does not fit is an error.
    A ``head_sink`` is an additional score per head, which takes part in softmax with a value of zeros;
    ``smooth_softmax`` is a sink of score 0. Caches of 8 or 4 bits have scales.
    """
    if last is None or total is None:
        raise ParseError("inputs 'seqlens_k' and 'total_sequence_length' are missing")
    node.refuse("qk_output", 0)
    heads, shared = node.get_int("num_heads"), node.get_int("kv_num_heads")
    q, k, v = grouped(g, query, key, value, heads, shared)
    if (q_norm is None) != (k_norm is None):
        raise ParseError("q_norm_weight and k_norm_weight must be given together")
    if q_norm is not None and k_norm is not None:
        both = node.get_float("qk_norm_epsilon", 1e-6)
        q = normalized(g, q, q_norm, node.get_float("q_norm_epsilon", both))
        k = normalized(g, k, k_norm, node.get_float("k_norm_epsilon", both))
    s, sliding = g.lens(q)[2], node.get_bool("sliding_window_cache")
    whole = 0 if sliding else _length(g, node, past_key, total, s)
    if past_key is not None and not sliding and g.constants.value(total) is None:
        # The lookup changes nothing: a total beyond the caches is an index out of range, which ends the run.
        total = g.op("gather", g.iota(whole + 1), g.reshape(g.convert(total, Type.int64_type), (1,)), axis=0)
    prompt = is_known_prompt(g, total, s) if query_lengths is None else False
    spans = spans_of(g, g.lens(q), last, total, query_lengths)
    if node.get_bool("do_rotary"):
        if cosine is None or sine is None:
            raise ParseError("do_rotary needs inputs 'cos_cache' and 'sin_cache'")
        given = places is not None and query_lengths is None
        where = spans.tokens if places is None else _given_places(g, places, total, prompt) if given else places
        interleaved = node.get_bool("rotary_interleaved")
        q, k = (in_float(g, x, lambda x: rotated(g, x, cosine, sine, where, interleaved)) for x in (q, k))
    formats = cache_formats(g, node, past_key, past_value, k_scale, v_scale, g.lens(q)[3], shared)
    if sliding:
        if past_key is None or past_value is None or any(f.bits for f in formats):
            raise UnsupportedError("sliding_window_cache without past_key and past_value, or with quantised caches")
        return attend_window_cache(g, node, (q, k, v), (past_key, past_value), spans, (attention_bias, sink))
    caches = [
        _updated(g, old, form.encode(g, new), spans, whole)
        for old, new, form in zip((past_key, past_value), (k, v), formats)
    ]
    return [merge_heads(g, _attended(g, node, q, caches, formats, spans, attention_bias, sink)), *caches]


def _attended(
    g: Builder,
    node: Node,
    q: Instruction,
    caches: list[Instruction],
    formats: tuple[CacheFormat, CacheFormat],
    spans: Spans,
    bias: Instruction | None,
    sink: Instruction | None,
) -> Instruction:
    """Emit the attention of q [b, h, s, d] over the caches."""
    causal, window = node.get_int("causal", 1), node.get_int("local_window_size", -1)
    if causal not in (0, 1) or (not causal and window > 0):
        raise ParseError(f"causal is {causal} and local_window_size {window}, expected causal 1, or 0 without a window")
    heads, scale, softcap = g.lens(q)[1], score_scale(node, g.lens(q)[3]), node.get_float("softcap", 0.0)
    if sink is None and node.get_int("smooth_softmax", 0) > 0:
        sink = g.broadcast(g.literal(0.0, Type.float_type), (heads,))
    result = q.shape.type
    keys, values = (form.codes(g, cache) for form, cache in zip(formats, caches))
    q = formats[0].scaled(g, q, heads)
    if bias is None:
        extra = [] if sink is None else [g.convert(sink, Type.float_type)]
        y = g.op(
            "cached_attention", q, keys, values, spans.limits(g), *extra,
            scale=scale, causal=bool(causal), window=max(window, 0), softcap=softcap, sink=bool(extra),
        )  # fmt: skip
    else:
        keys, values = (g.convert(x, q.shape.type) for x in (keys, values))
        b, whole = g.lens(q)[0], g.lens(keys)[2]
        at, queries = g.iota(whole, 3, 4), g.reshape(spans.tokens, (b, 1, g.lens(q)[2], 1))
        mask = Mask(g.pointwise("less", at, g.reshape(spans.ends, (b, 1, 1, 1))))
        if causal:
            mask.restrict(g, g.pointwise("less_or_equal", at, queries))
        if window > 0:
            first = g.pointwise("sub", queries, g.literal(np.int64(window)))
            mask.restrict(g, g.pointwise("greater", at, first))
        mask.add(g, _bias_of(g, bias, whole))
        if sink is not None:
            keys, values = with_sink(g, q, keys, values, mask, sink)
        y = attend(g, q, keys, values, scale, mask, softcap)
    return g.convert(formats[1].scaled(g, y, heads), result)


def _declared_shared(g: Builder, node: Node) -> bool:
    """Return whether the model declares the same length for the key cache before and after the step."""
    names = node.proto.input[3], (*node.proto.output, "", "")[1]
    before, after = (declared_lengths(g, name)[2:3] for name in names)
    return before == after and any(before)


def _length(g: Builder, node: Node, past: Instruction | None, total: Instruction, s: int) -> int:
    """Return the length of the caches after the step.

    Raises:
        UnknownValueError: the caches may grow, to a total length that only a run knows.
    """
    count = g.constants.value(total)
    wanted = None if count is None else g.int_value(total, "total_sequence_length")
    if past is None:
        whole = s if wanted is None else wanted
    else:
        whole = g.lens(past)[2] if wanted is None else maximum(g.lens(past)[2], wanted)
        if wanted is None and (known_less(whole, s) or not _declared_shared(g, node)):
            g.constant(total, "total_sequence_length")
    if known_less(whole, s) or (not isinstance(whole, Dim) and whole < s):
        raise ShapeError(f"{s} new tokens do not fit a cache of {whole}")
    return whole


def _given_places(g: Builder, places: Instruction, total: Instruction, prompt: bool | None) -> Instruction:
    """Emit positions [b, s] of the new tokens from ``position_ids``.

    For a prompt they count up from ``position_ids[0, 0]``.
    """
    b, s = g.lens(places)
    if prompt is False or known_equal(b * s, 0):
        return places
    first = g.convert(g.slice(g.slice(places, 0, 0, 1), 1, 0, 1), Type.int64_type)
    following = g.broadcast(g.pointwise("add", first, g.iota(s, 1, 2)), (b, s))
    return following if prompt else g.pointwise("where", is_prompt(g, total, s), following, places)


def _updated(g: Builder, old: Instruction | None, new: Instruction, spans: Spans, whole: int) -> Instruction:
    """Emit a cache of ``whole`` positions with the new rows [b, h, s, d] written into it."""
    b, h, s, d = g.lens(new)
    if old is None:
        if known_equal(s, whole):
            return new
        old = g.broadcast(g.like(0, new), (b, h, whole, d))
    if rank(old) != 4 or g.lens(old)[3] != d:
        raise ShapeError(f"a cache {list(g.lens(old))} does not take new rows {list(g.lens(new))}")
    if old.shape.type is not new.shape.type:
        raise ParseError(f"a cache of {old.shape.type.name} does not take new rows of {new.shape.type.name}")
    length = -1 if known_equal(g.lens(old)[2], whole) else whole
    return g.op("update_cache", old, new, spans.written, length=length)


def _bias_of(g: Builder, bias: Instruction, whole: int) -> Instruction:
    """Emit a bias whose last axis has the cache's length."""
    lens = g.lens(bias)
    missing = whole - lens[-1]
    if not isinstance(missing, Dim) and missing < 0:
        raise ShapeError(f"attention_bias {list(lens)} does not fit {whole} keys")
    return bias if known_equal(missing, 0) else g.op("pad", bias, pads=(0,) * (2 * len(lens) - 1) + (missing,))
