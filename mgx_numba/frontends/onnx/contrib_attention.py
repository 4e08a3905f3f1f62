"""Attention operators of ONNX Runtime."""

from __future__ import annotations

import numpy as np

from ...core.dim import known_equal, known_less, maximum
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .attention import Mask, attend, merge_heads, primitive_attention, restrict_causal, split_heads
from .builder import Builder, rank
from .cached_tokens import score_scale
from .matmul import matmul
from .node import Node
from .registry import MICROSOFT, register


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
        keys = g.iota(t, 3, 4)
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
    y = merge_heads(g, attend(g, q, k, v, score_scale(node, d), mask))
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
    heads = node.get_int("num_heads")
    q, k, v = _unpack(g, query, key, value, heads)
    if bias is not None:
        q, k, v = _add_biases(g, q, k, v, bias, projected=key is None or rank(key) != 4)
    if past_length is not None:
        if past_key is None or past_value is None or node.wants(3):
            raise UnsupportedError("past_sequence_length needs past_key and past_value, and no output of scores")
        new, caches = (q, k, v), (past_key, past_value)
        return _attend_buffers(g, node, new, caches, past_length, (padding, attention_bias))
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
        _, _, scores, _, y = primitive_attention(g, q, k, v, score_scale(node, d), mask, 0.0)
        return [merge_heads(g, y), k, v, scores]
    return [merge_heads(g, attend(g, q, k, v, score_scale(node, d), mask)), k, v]


@register("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None = None,
    value: Instruction | None = None,
    padding: Instruction | None = None,
    attention_bias: Instruction | None = None,
    past_key: Instruction | None = None,
    past_value: Instruction | None = None,
    past_length: Instruction | None = None,
    width: Instruction | None = None,
    beams: Instruction | None = None,
    bias: Instruction | None = None,
) -> list[Instruction]:
    """Emit attention of one new token; with ``past_present_share_buffer`` a cache is longer than its content."""
    node.refuse("output_qk", 0)
    if beams is not None and not (width is not None and np.all(g.constants.value(width) == 1)):
        raise UnsupportedError("input 'cache_indirection' (the beams of a search) is supported for a beam_width of 1")
    if key is None:
        total = g.lens(query)[2]
        if total % 3:
            raise ShapeError(f"packed queries, keys and values of {total} features do not split into three parts")
        query, key, value = g.split(query, 2, [total // 3] * 3)
    shared = node.get_bool("past_present_share_buffer")
    if past_length is None and shared and rank(key) != 4:
        raise ParseError("past_present_share_buffer needs input 'past_sequence_length'")
    places = (bias, padding, attention_bias, past_key, past_value, past_length if shared else None)
    return multi_head_attention(g, node, query, key, value, *places)


def _attend_buffers(
    g: Builder,
    node: Node,
    new: tuple[Instruction, Instruction, Instruction],
    caches: tuple[Instruction, Instruction],
    past: Instruction,
    masks: tuple[Instruction | None, Instruction | None],
) -> list[Instruction]:
    """Emit attention over caches [b, heads, t, d] that hold ``past`` tokens before the new ones; return it and caches.

    Args:
        new: queries, keys and values of the new tokens, [b, heads, s, d].
        caches: keys and values, longer than what they hold.
        past: number of earlier tokens, one for all sequences.
        masks: padding of keys, and a bias of scores.
    """
    q, k, v = new
    (b, _, s, d), fresh = g.lens(q), g.lens(k)[2]
    if known_less(g.lens(caches[0])[2], fresh):
        raise ShapeError(f"{fresh} new tokens do not fit a cache of {g.lens(caches[0])[2]}")
    before = g.broadcast(g.reshape(g.convert(past, Type.int64_type), (1, 1)), (b, 1))
    ends = g.pointwise("add", before, g.literal(fresh, Type.int64_type))
    places = g.pointwise("add", before, g.iota(fresh, 1, 2))
    keys, values = (g.op("update_cache", old, x, places) for old, x in zip(caches, (k, v)))
    start = g.pointwise("sub", ends, g.literal(s, Type.int64_type))
    tokens = g.pointwise("add", start, g.iota(s, 1, 2))
    causal, scale = node.get_bool("unidirectional"), score_scale(node, d)
    padding, attention_bias = masks
    if padding is None and attention_bias is None:
        limits = g.op("concat", start, ends, axis=1)
        y = g.op("cached_attention", q, keys, values, limits, scale=scale, causal=causal)
        return [merge_heads(g, y), keys, values]
    whole = g.lens(keys)[2]
    at = g.iota(whole, 3, 4)
    mask = Mask(g.pointwise("less", at, g.reshape(ends, (b, 1, 1, 1))))
    if causal:
        mask.restrict(g, g.pointwise("less_or_equal", at, g.reshape(tokens, (b, 1, s, 1))))
    if padding is not None:
        filter_value = node.get_float("mask_filter_value", -10000.0)
        if rank(padding) > 1:
            padding = _as_long(g, padding, whole)
        _padding(g, mask, padding, (b, s, whole), filter_value, q.shape.type)
    if attention_bias is not None:
        mask.add(g, _as_long(g, attention_bias, whole))
    return [merge_heads(g, attend(g, q, keys, values, scale, mask)), keys, values]


def _as_long(g: Builder, x: Instruction, whole: int) -> Instruction:
    """Emit a mask or bias whose last axis has the cache's length; what is beyond it is hidden anyway."""
    lens = g.lens(x)
    missing = whole - lens[-1]
    return x if known_equal(missing, 0) else g.op("pad", x, pads=(0,) * (2 * len(lens) - 1) + (missing,))


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
