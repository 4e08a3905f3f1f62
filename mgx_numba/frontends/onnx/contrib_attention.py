"""Attention operators of ONNX Runtime.

com.microsoft: Attention GroupQueryAttention MultiHeadAttention.
"""

from __future__ import annotations

import math

import numpy as np

from ...core.dim import Dim, equal, known_equal, known_less, maximum
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .attention import Mask, attend, merge_heads, positions, restrict_causal, split_heads, stages
from .builder import Builder, rank
from .matmul import matmul
from .node import Node
from .registry import MICROSOFT, register
from .rotary import rotate, table_rows


def _scale(node: Node, head: int) -> float:
    return node.get_float("scale", 0.0) or 1 / math.sqrt(head)


def _padding(
    g: Builder, mask: Mask, given: Instruction, lens: tuple[int, int, int], filter_value: float, type: Type
) -> None:
    """Add the mask of keys to ``mask``.

    The forms are: [b, t] or [b, s, t] with 0 for hidden keys; [b] or [2 * b] with ends (and starts) of the keys; [3 * b
    + 2] with ends, then values for kernels without padding.
    """
    b, _, t = lens
    shape = g.lens(given)
    if len(shape) == 1 and shape[0] == 3 * b + 2:
        given, shape = g.slice(given, 0, 0, b), (b,)
    if len(shape) == 1 and shape[0] in (b, 2 * b):
        keys = positions(g, t, 3, 4)
        for part, op in zip(g.split(given, 0, [b] * (shape[0] // b)), ("less", "greater_or_equal"), strict=False):
            limit = g.reshape(g.convert(part, Type.int64_type), (b, 1, 1, 1))
            visible = g.pointwise(op, keys, limit)
            mask.add(g, g.pointwise("where", visible, g.literal(0.0, type), g.literal(filter_value, type)))
        return
    if len(shape) == 2:
        given = g.unsqueeze(given, [1, 2])
    elif len(shape) == 3:
        given = g.unsqueeze(given, [1])
    else:
        raise UnsupportedError(f"a mask of lengths {list(shape)} is not supported")
    visible = g.pointwise("greater", given, g.like(0, given))
    mask.add(g, g.pointwise("where", visible, g.literal(0.0, type), g.literal(filter_value, type)))


@register("Attention", domain=MICROSOFT)
def attention_contrib(
    g: Builder,
    node: Node,
    x: Instruction,
    weights: Instruction,
    bias: Instruction | None = None,
    mask_index: Instruction | None = None,
    past: Instruction | None = None,
    attention_bias: Instruction | None = None,
) -> list[Instruction]:
    """Emit the projections to queries, keys and values as one product, then attention.

    The cache is [2, b, heads, p, d].
    """
    if rank(x) != 3:
        raise ParseError(f"input has {rank(x)} dimensions, expected 3")
    projected = matmul(g, x, weights)
    if bias is not None:
        projected = g.pointwise("add", projected, bias)
    return attend_projected(g, node, projected, mask_index, past, attention_bias)


def attend_projected(
    g: Builder,
    node: Node,
    projected: Instruction,
    mask_index: Instruction | None,
    past: Instruction | None,
    attention_bias: Instruction | None,
) -> list[Instruction]:
    """Emit attention over concatenated queries, keys and values [b, s, 3 h]; return it and the extended cache."""
    node.refuse("do_rotary", 0)
    heads = node.get_int("num_heads")
    total = g.lens(projected)[2]
    sizes = node.get_ints("qkv_hidden_sizes", (total // 3,) * 3)
    if len(sizes) != 3 or sum(sizes) != total:
        raise ShapeError(f"hidden sizes {sizes} do not add up to the weights' {total} columns")
    q, k, v = (split_heads(g, p, heads) for p in g.split(projected, 2, sizes))
    if past is not None:
        halves = g.split(past, 0, [1, 1])
        k, v = (g.op("concat", g.squeeze(old, [0]), new, axis=2) for old, new in zip(halves, (k, v), strict=False))
    b, _, s, d = g.lens(q)
    mask = Mask(causal=node.get_bool("unidirectional"))
    if mask_index is not None:
        filter_value = node.get_float("mask_filter_value", -10000.0)
        _padding(g, mask, mask_index, (b, s, g.lens(k)[2]), filter_value, q.shape.type)
    if attention_bias is not None:
        mask.add(g, attention_bias)
    y = merge_heads(g, attend(g, q, k, v, _scale(node, d), mask))
    if not node.wants(1):
        return [y]
    if g.lens(k) != g.lens(v):
        raise ShapeError(f"output 'present' holds both keys {list(g.lens(k))} and values {list(g.lens(v))}")
    return [y, g.op("concat", g.unsqueeze(k, [0]), g.unsqueeze(v, [0]), axis=0)]


@register("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None = None,
    value: Instruction | None = None,
    bias: Instruction | None = None,
    padding: Instruction | None = None,
    attention_bias: Instruction | None = None,
    past_key: Instruction | None = None,
    past_value: Instruction | None = None,
    past_length: Instruction | None = None,
    beams: Instruction | None = None,
) -> list[Instruction]:
    """Emit attention for queries [b, s, h] with keys and values [b, t, h] or [b, heads, t, d].

    Queries, keys and values may be packed as [b, s, heads, 3, d]. Further outputs are keys and values including the
    past, and the scores before softmax.
    """
    if beams is not None:
        raise UnsupportedError("input 'cache_indirection' (the beams of a search) is not supported")
    if past_length is not None:
        raise UnsupportedError("input 'past_sequence_length' (a cache longer than what it holds) is not supported")
    heads = node.get_int("num_heads")
    q, k, v = _unpack(g, query, key, value, heads)
    if bias is not None:
        q, k, v = _add_biases(g, q, k, v, bias, projected=key is None or rank(key) != 4)
    past = 0
    if past_key is not None and past_value is not None:
        past = g.lens(past_key)[2]
        k, v = g.op("concat", past_key, k, axis=2), g.op("concat", past_value, v, axis=2)
    b, _, s, d = g.lens(q)
    mask = Mask()
    if node.get_bool("unidirectional"):
        t = g.lens(k)[2]
        restrict_causal(g, mask, s, t, maximum(past, t - s))  # fewer queries than keys: the last positions
    if padding is not None:
        filter_value = node.get_float("mask_filter_value", -10000.0)
        _padding(g, mask, padding, (b, s, g.lens(k)[2]), filter_value, query.shape.type)
    if attention_bias is not None:
        mask.add(g, attention_bias)
    if node.wants(3):
        _, _, scores, _, y = stages(g, q, k, v, _scale(node, d), mask, 0.0)
        return [merge_heads(g, y), k, v, scores]
    return [merge_heads(g, attend(g, q, k, v, _scale(node, d), mask)), k, v]


def _unpack(
    g: Builder, query: Instruction, key: Instruction | None, value: Instruction | None, heads: int
) -> tuple[Instruction, Instruction, Instruction]:
    """Emit queries, keys and values as [b, heads, tokens, features]."""

    def members(x: Instruction, count: int) -> list[Instruction]:
        lens = g.lens(x)
        if len(lens) != 5 or lens[2] != heads or lens[3] != count:
            raise ShapeError(f"packed input is {list(lens)}, expected [b, s, {heads}, {count}, d]")
        return [g.transpose(g.squeeze(p, [3]), (0, 2, 1, 3)) for p in g.split(x, 3, [1] * count)]

    if key is None:
        q, k, v = members(query, 3)
        return q, k, v
    q = split_heads(g, query, heads)
    if rank(key) == 5:
        k, v = members(key, 2)
        return q, k, v
    if value is None:
        raise ParseError("input 'value' is missing")
    if rank(key) == 4:
        return q, key, value
    return q, split_heads(g, key, heads), split_heads(g, value, heads)


def _add_biases(
    g: Builder, q: Instruction, k: Instruction, v: Instruction, bias: Instruction, projected: bool
) -> tuple[Instruction, Instruction, Instruction]:
    """Add the parts of one bias vector to queries, keys and values; keys and values from a cache include theirs."""
    sizes = [g.lens(x)[1] * g.lens(x)[3] for x in (q, k, v)]
    if g.lens(bias) != (sum(sizes),):
        raise ShapeError(f"bias is {list(g.lens(bias))}, expected [{sum(sizes)}]")
    parts = g.split(bias, 0, sizes)
    result = []
    for x, part in zip((q, k, v), parts, strict=False):
        _, h, _, d = g.lens(x)
        result.append(g.pointwise("add", x, g.reshape(part, (h, 1, d))) if projected or x is q else x)
    return result[0], result[1], result[2]


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
) -> list[Instruction]:
    """Emit causal attention over caches [b, kv_heads, t, d]; ``seqlens_k`` has the last position of each sequence.

    The caches keep their length if new tokens fit (a shared buffer); otherwise they grow to ``total_sequence_length``.
    A ``head_sink`` is an additional score per head, which takes part in softmax with a value of zeros;
    ``smooth_softmax`` is a sink of score 0.
    """
    if last is None or total is None:
        raise ParseError("inputs 'seqlens_k' and 'total_sequence_length' are missing")
    for name, usual in (("causal", 1), ("kv_cache_bit_width", 0), ("sliding_window_cache", 0), ("qk_output", 0)):
        node.refuse(name, usual)
    heads, shared = node.get_int("num_heads"), node.get_int("kv_num_heads")
    q, k, v = _grouped(g, query, key, value, heads, shared)
    b, _, s, d = g.lens(q)
    ends = g.pointwise("add", g.reshape(g.convert(last, Type.int64_type), (b, 1)), g.literal(np.int64(1)))
    capacity = g.lens(past_key)[2] if past_key is not None else 0
    count = g.constants.value(total)
    if count is None and capacity < s:
        g.constant(total, "total_sequence_length")
    wanted = None if count is None else g.int_value(total, "total_sequence_length")
    whole = capacity if wanted is None else maximum(capacity, wanted)
    if known_less(whole, s) or (not isinstance(whole, Dim) and whole < s):
        raise ShapeError(f"{s} new tokens do not fit a cache of {whole}")
    prompt = None if wanted is None or isinstance(equal(wanted, s), Dim) else known_equal(wanted, s)
    start = _start(g, ends, total, s, prompt)
    tokens = g.pointwise("add", start, positions(g, s, 1))
    if node.get_bool("do_rotary"):
        if cosine is None or sine is None:
            raise ParseError("do_rotary needs inputs 'cos_cache' and 'sin_cache'")
        where = tokens if places is None else _given_places(g, places, total, prompt)
        cosine, sine = (table_rows(g, t, where, q.shape.type) for t in (cosine, sine))
        interleaved = node.get_bool("rotary_interleaved")
        q, k = rotate(g, q, cosine, sine, interleaved), rotate(g, k, cosine, sine, interleaved)
    k, v = (_written(g, old, new, tokens, whole) for old, new in ((past_key, k), (past_value, v)))
    keys, queries = positions(g, whole, 3, 4), g.reshape(tokens, (b, 1, s, 1))
    mask = Mask(g.pointwise("less_or_equal", keys, queries))
    mask.restrict(g, g.pointwise("less", keys, g.reshape(ends, (b, 1, 1, 1))))
    window = node.get_int("local_window_size", -1)
    if window > 0:
        first = g.pointwise("sub", queries, g.literal(np.int64(window)))
        mask.restrict(g, g.pointwise("greater", keys, first))
    if attention_bias is not None:
        mask.add(g, _bias_of(g, attention_bias, whole))
    seen = (k, v)
    if sink is not None or node.get_int("smooth_softmax", 0) > 0:
        seen = _with_sink(g, q, k, v, mask, sink)
    y = attend(g, q, *seen, _scale(node, d), mask, node.get_float("softcap", 0.0))
    return [merge_heads(g, y), k, v]


def _with_sink(
    g: Builder, q: Instruction, k: Instruction, v: Instruction, mask: Mask, sink: Instruction | None
) -> tuple[Instruction, Instruction]:
    """Append a visible key and value of zeros, with a bias per head if ``sink`` is given."""
    b, h, s, _ = g.lens(q)
    whole = g.lens(k)[2]
    k, v = (g.op("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 0)) for x in (k, v))
    if mask.allowed is not None:
        allowed = g.broadcast(mask.allowed, (b, 1, s, whole))
        mask.allowed = g.op("concat", allowed, g.broadcast(g.literal(True), (b, 1, s, 1)), axis=3)
    if mask.bias is not None or sink is not None:
        bias = g.like(0, q) if mask.bias is None else mask.bias
        column = g.like(0, q) if sink is None else g.reshape(g.convert(sink, q.shape.type), (h, 1, 1))
        parts = g.broadcast(bias, (b, h, s, whole)), g.broadcast(column, (b, h, s, 1))
        mask.bias = g.op("concat", *parts, axis=3)
    return k, v


def _grouped(
    g: Builder,
    query: Instruction,
    key: Instruction | None,
    value: Instruction | None,
    heads: int,
    shared: int,
) -> tuple[Instruction, Instruction, Instruction]:
    if key is not None and value is not None:
        return split_heads(g, query, heads), split_heads(g, key, shared), split_heads(g, value, shared)
    packed = split_heads(g, query, heads + 2 * shared)
    q, k, v = g.split(packed, 1, [heads, shared, shared])
    return q, k, v


def _start(g: Builder, ends: Instruction, total: Instruction, s: int, prompt: bool | None) -> Instruction:
    """Emit the position [b, 1] of each sequence's first new token: 0 for a prompt, else the earlier tokens' number."""
    if prompt:
        return g.broadcast(g.literal(np.int64(0)), g.lens(ends))
    before = g.pointwise("sub", ends, g.literal(s, Type.int64_type))
    if prompt is False:
        return before
    return g.pointwise("where", _is_prompt(g, total, s), g.literal(np.int64(0)), before)


def _is_prompt(g: Builder, total: Instruction, s: int) -> Instruction:
    """Emit whether all tokens are new, [1, 1]."""
    return g.pointwise("equal", g.reshape(g.convert(total, Type.int64_type), (1, 1)), g.literal(s, Type.int64_type))


def _given_places(g: Builder, places: Instruction, total: Instruction, prompt: bool | None) -> Instruction:
    """Emit positions [b, s] of the new tokens from ``position_ids``.

    For a prompt they count up from ``position_ids[0, 0]``.
    """
    b, s = g.lens(places)
    if prompt is False or known_equal(b * s, 0):
        return places
    first = g.convert(g.slice(g.slice(places, 0, 0, 1), 1, 0, 1), Type.int64_type)
    following = g.broadcast(g.pointwise("add", first, positions(g, s, 1)), (b, s))
    return following if prompt else g.pointwise("where", _is_prompt(g, total, s), following, places)


def _written(g: Builder, old: Instruction | None, new: Instruction, tokens: Instruction, whole: int) -> Instruction:
    """Emit a cache of ``whole`` positions with the new tokens [b, h, s, d] written at positions [b, s]."""
    b, h, s, d = g.lens(new)
    if old is not None and g.lens(old)[3] != d:
        raise ShapeError(f"a cache of {g.lens(old)[3]} features does not take {d} new ones")
    if old is None:
        if known_equal(s, whole):
            return new
        buffer = g.broadcast(g.like(0, new), (b, h, whole, d))
    else:
        missing = whole - g.lens(old)[2]
        buffer = old if known_equal(missing, 0) else g.op("pad", old, pads=(0,) * 6 + (missing, 0))
    index = g.broadcast(g.reshape(tokens, (b, 1, s, 1)), (b, h, s, d))
    return g.op("scatter_none", buffer, index, new, axis=2)


def _bias_of(g: Builder, bias: Instruction, whole: int) -> Instruction:
    """Emit a bias whose last axis has the cache's length."""
    lens = g.lens(bias)
    missing = whole - lens[-1]
    if missing < 0:
        raise ShapeError(f"attention_bias {list(lens)} does not fit {whole} keys")
    return bias if known_equal(missing, 0) else g.op("pad", bias, pads=(0,) * (2 * len(lens) - 1) + (missing,))
