"""Attention over a cache in blocks, for sequences of different lengths without padding."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .attention import merge_heads
from .builder import Builder, rank
from .cached_tokens import CacheFormat, cache_formats, grouped, in_float, normalized, rotated, score_scale
from .node import Node
from .registry import MICROSOFT, OWN, register


@register("PagedAttention", domain=MICROSOFT)
def paged_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None = None,
    value: Instruction | None = None,
    key_cache: Instruction | None = None,
    value_cache: Instruction | None = None,
    starts: Instruction | None = None,
    past: Instruction | None = None,
    table: Instruction | None = None,
    cosine: Instruction | None = None,
    sine: Instruction | None = None,
    slots: Instruction | None = None,
    sink: Instruction | None = None,
    q_norm: Instruction | None = None,
    k_norm: Instruction | None = None,
    k_scale: Instruction | None = None,
    v_scale: Instruction | None = None,
    bounds: Instruction | None = None,
) -> list[Instruction]:
    """Emit attention of packed tokens [n, hidden] over blocks [blocks, block, kv_heads, d] that ``block_table`` lists.

    Each token is a batch of one query: it sees the keys of its sequence up to its own position. The results are the
    attention and both caches with the new rows, which a run may bind to the memory of the caches.
    """
    node.refuse("rotary_offset", 0)
    if node.get_str("kv_cache_layout", "SEPARATE") != "SEPARATE":
        raise UnsupportedError("kv_cache_layout LATENT (one cache for keys and values) is not supported")
    if key_cache is None or value_cache is None or starts is None or past is None or table is None:
        raise ParseError("key_cache, value_cache, cumulative_sequence_length, past_seqlens and block_table are needed")
    heads, shared = node.get_int("num_heads"), node.get_int("kv_num_heads")
    if rank(query) != 2 or rank(key_cache) != 4:
        raise ShapeError(f"query has {rank(query)} axes and key_cache {rank(key_cache)}, expected 2 and 4")
    q, k, v = _heads(g, query, key, value, heads, shared)
    count, d = g.lens(q)[0], g.lens(q)[3]
    starts, past, table = (g.convert(x, Type.int64_type) for x in (starts, past, table))
    owner = _owners(g, starts, count)
    first = g.op("gather", starts, owner, axis=0)
    before = g.op("gather", past, owner, axis=0)
    place = g.pointwise("add", before, g.pointwise("sub", g.iota(count, 0, 1), first))
    if (q_norm is None) != (k_norm is None):
        raise ParseError("q_norm_weight and k_norm_weight must be given together")
    if q_norm is not None and k_norm is not None:
        epsilon = node.get_float("qk_norm_epsilon", 1e-6)
        q, k = normalized(g, q, q_norm, epsilon), normalized(g, k, k_norm, epsilon)
    if node.get_bool("do_rotary"):
        if cosine is None or sine is None:
            raise ParseError("do_rotary needs inputs 'cos_cache' and 'sin_cache'")
        where, interleaved = g.reshape(place, (count, 1)), node.get_bool("rotary_interleaved")
        q, k = (in_float(g, x, lambda x: rotated(g, x, cosine, sine, where, interleaved)) for x in (q, k))
    pages = g.op("gather", table, owner, axis=0)  # the blocks of each token's sequence
    formats = cache_formats(g, node, key_cache, value_cache, k_scale, v_scale, d, shared)
    size = g.lens(key_cache)[1]
    if slots is None:
        slots = g.reshape(_slots(g, pages, g.reshape(place, (count, 1)), size), (count,))
    slot = g.convert(slots, Type.int64_type)
    caches = [
        _written(g, cache, form.encode(g, new), slot)
        for cache, new, form in zip((key_cache, value_cache), (k, v), formats)
    ]
    y = _attended(g, node, q, caches, formats, pages, place, (starts, past, owner), sink)
    return [g.reshape(y, (count, heads * d)), *caches]


@register("PagedGroupQueryAttention", domain=OWN)
def paged_group_query_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction,
    value: Instruction,
    key_cache: Instruction,
    value_cache: Instruction,
    past: Instruction,
    table: Instruction,
    cosine: Instruction | None = None,
    sine: Instruction | None = None,
) -> list[Instruction]:
    """Emit GroupQueryAttention of [b, s, hidden] over caches in blocks [blocks, kv_heads, block, d].

    Every sequence has ``s`` new tokens behind its ``past`` [b] tokens; ``table`` [b, pages] has its blocks.
    """
    heads, shared = node.get_int("num_heads"), node.get_int("kv_num_heads")
    q, k, v = grouped(g, query, key, value, heads, shared)
    b, _, s, d = g.lens(q)
    past, table = (g.convert(x, Type.int64_type) for x in (past, table))
    start = g.reshape(past, (b, 1))
    tokens = g.pointwise("add", start, g.iota(s, 1, 2))
    if cosine is not None and sine is not None:
        interleaved = node.get_bool("rotary_interleaved")
        q, k = (in_float(g, x, lambda x: rotated(g, x, cosine, sine, tokens, interleaved)) for x in (q, k))
    formats = cache_formats(g, node, key_cache, value_cache, None, None, d, shared)
    blocks, _, size, _ = g.lens(key_cache)
    row = g.reshape(_slots(g, table, tokens, size, shared), (b, 1, s))
    head = g.reshape(g.iota(shared, 0, 1), (1, shared, 1))
    slots = g.pointwise("add", row, g.pointwise("mul", head, g.literal(size, Type.int64_type)))
    slots = g.pointwise("where", g.pointwise("less", row, g.like(0, row)), g.like(-1, slots), slots)
    slots = g.reshape(slots, (1, b * shared * s))
    caches = []
    for cache, new, form in zip((key_cache, value_cache), (k, v), formats):
        flat = g.reshape(_bits(g, cache), (1, 1, blocks * shared * size, d))
        rows = g.reshape(_bits(g, form.encode(g, new)), (1, 1, b * shared * s, d))
        written = g.reshape(g.op("update_cache", flat, rows, slots), (blocks, shared, size, d))
        whole = written.shape.type is cache.shape.type
        caches.append(written if whole else g.op("bit_cast", written, target_type=cache.shape.type))
    ends = g.pointwise("add", start, g.literal(s, Type.int64_type))
    limits = g.op("concat", start, ends, axis=1)
    y = g.op(
        "cached_attention", q, *caches, limits, table, paged=True, scale=score_scale(node, d),
        window=max(node.get_int("local_window_size", -1), 0), softcap=node.get_float("softcap", 0.0),
    )  # fmt: skip
    return [merge_heads(g, y), *caches]


def _heads(
    g: Builder, query: Instruction, key: Instruction | None, value: Instruction | None, heads: int, shared: int
) -> list[Instruction]:
    """Emit queries, keys and values as [n, heads, 1, d]."""

    def split(x: Instruction, count: int) -> Instruction:
        tokens, hidden = g.lens(x)
        if hidden % count:
            raise ShapeError(f"lengths {[tokens, hidden]} do not split into {count} heads")
        return g.reshape(x, (tokens, count, 1, hidden // count))

    if key is not None and value is not None:
        return [split(query, heads), split(key, shared), split(value, shared)]
    return g.split(split(query, heads + 2 * shared), 1, [heads, shared, shared])


def _owners(g: Builder, starts: Instruction, count: int) -> Instruction:
    """Emit the sequence of each of ``count`` tokens, [n]: the number of sequences that end at or before it."""
    batch = g.lens(starts)[0] - 1
    ends = g.unsqueeze(g.slice(starts, 0, 1, batch + 1), [0])
    behind = g.pointwise("greater_or_equal", g.unsqueeze(g.iota(count, 0, 1), [1]), ends)
    found = g.op("reduce_sum", g.convert(behind, Type.int64_type), axes=(1,))
    return g.pointwise("min", g.reshape(found, (count,)), g.literal(max(batch - 1, 0), Type.int64_type))


def _slots(g: Builder, pages: Instruction, place: Instruction, size: int, heads: int = 1) -> Instruction:
    """Emit the row of the cache for each position of tokens [n, t], -1 where no block is mapped.

    Args:
        pages: blocks [n, pages] of each row.
        size: positions of a block.
        heads: rows of a position, which lie ``size`` apart; the row is that of the first.
    """
    length = g.literal(size, Type.int64_type)
    page = g.pointwise("div", place, length)
    block = g.op("gather_elements", pages, page, axis=1)
    row = g.pointwise("sub", place, g.pointwise("mul", page, length))
    slot = g.pointwise("add", g.pointwise("mul", block, g.literal(size * heads, Type.int64_type)), row)
    return g.pointwise("where", g.pointwise("less", block, g.like(0, block)), g.like(-1, slot), slot)


def _bits(g: Builder, x: Instruction) -> Instruction:
    """Emit narrow floats as the integers that store them, which no pass computes in float32."""
    kind = {2: Type.uint16_type, 1: Type.uint8_type}.get(x.shape.type.size)
    return x if kind is None else g.op("bit_cast", x, target_type=kind)


def _written(g: Builder, cache: Instruction, new: Instruction, slot: Instruction) -> Instruction:
    """Emit a cache [blocks, block, heads, d] with the rows [n, heads, 1, d] written at ``slot``."""
    blocks, size, heads, d = g.lens(cache)
    count = g.lens(slot)[0]
    if cache.shape.type is not new.shape.type:
        raise ParseError(f"a cache of {cache.shape.type.name} does not take new rows of {new.shape.type.name}")
    flat = g.reshape(cache, (1, 1, blocks * size, heads * d))
    rows = g.reshape(new, (1, 1, count, heads * d))
    return g.reshape(g.op("update_cache", flat, rows, g.unsqueeze(slot, [0])), (blocks, size, heads, d))


def _attended(
    g: Builder,
    node: Node,
    q: Instruction,
    caches: list[Instruction],
    formats: tuple[CacheFormat, CacheFormat],
    pages: Instruction,
    place: Instruction,
    sequences: tuple[Instruction, Instruction, Instruction],
    sink: Instruction | None,
) -> Instruction:
    """Emit attention of q [n, heads, 1, d]; ``sequences`` are starts, earlier lengths, and each token's sequence."""
    count, heads, _, d = g.lens(q)
    causal, window = node.get_bool("is_causal", True), node.get_int("local_window_size", -1)
    if causal:
        seen = g.pointwise("add", place, g.literal(np.int64(1)))
    else:
        starts, past, owner = sequences
        following = g.op("gather", starts, g.pointwise("add", owner, g.literal(np.int64(1))), axis=0)
        fresh = g.pointwise("sub", following, g.op("gather", starts, owner, axis=0))
        seen = g.pointwise("add", g.op("gather", past, owner, axis=0), fresh)
    limits = g.op("concat", g.reshape(place, (count, 1)), g.reshape(seen, (count, 1)), axis=1)
    keys, values = (form.codes(g, g.transpose(cache, (0, 2, 1, 3))) for form, cache in zip(formats, caches))
    extra = [] if sink is None else [g.convert(sink, Type.float_type)]
    result = q.shape.type
    y = g.op(
        "cached_attention", formats[0].scaled(g, q, heads), keys, values, limits, pages, *extra, paged=True,
        scale=score_scale(node, d), causal=causal, window=max(window, 0), softcap=node.get_float("softcap", 0.0),
        sink=bool(extra),
    )  # fmt: skip
    return g.convert(formats[1].scaled(g, y, heads), result)
