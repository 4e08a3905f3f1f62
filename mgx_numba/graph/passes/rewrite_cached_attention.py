"""Write attention to caches as attention with a mask, for targets without a kernel that reads the number of keys."""

from __future__ import annotations

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...ops.caches import BYTE_TYPES, CachedAttention
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule
from .rewriter import rule_pass


def _check(m: Match) -> str | None:
    can = m.options.capabilities
    known = can is None or (can.reads_cache is not None and can.reads_cache(m.ins))
    return "a kernel computes it" if known else None


def _axis(b: RewriteBuilder, length: int, axis: int) -> Instruction:
    """Return 0, 1, ... along one of four axes."""
    return b.unsqueeze(b.op("iota", length=length), [a for a in range(4) if a != axis])


def _compare(b: RewriteBuilder, name: str, x: Instruction, y: Instruction, lens: tuple[int, ...]) -> Instruction:
    made = b.op(name, b.broadcast(x, lens), b.broadcast(y, lens))
    return made if made.shape.type is Type.bool_type else b.convert(made, Type.bool_type)


def _gathered(b: RewriteBuilder, blocks: Instruction, table: Instruction) -> Instruction:
    """Return the blocks [n, h, page, d] of each batch's row of a table [b, pages], as [b, h, pages * page, d]."""
    batch, pages = table.shape.lens
    _, heads, page, features = blocks.shape.lens
    found = b.op("gather", blocks, b.op("max", table, b.scalar(0, table)), axis=0)
    return b.reshape(b.transpose(found, (0, 2, 1, 3, 4)), (batch, heads, pages * page, features))


@rule("rewrite_cached_attention", op("cached_attention"), _check, exact=True)
def with_mask(m: Match, b: RewriteBuilder) -> object:
    """``cached_attention(q, k, v, limits) -> attention(q, k, v with zeros for invalid rows, mask)``."""
    given, made = m.ins.operator(CachedAttention), m.ins.shape
    q, k, v, limits = m.ins.inputs[:4]
    wide = made.type.compute if given.softcap > 0 or given.sink or k.shape.type in BYTE_TYPES else made.type
    if given.paged:
        k, v = (_gathered(b, x, m.ins.inputs[4]) for x in (k, v))
    q, k, v = (b.convert(x, wide) for x in (q, k, v))
    (batch, heads, queries, depth), (shared, keys) = q.shape.lens, k.shape.lens[1:3]
    start, count = (
        b.reshape(b.op("slice", limits, axes=(1,), starts=(i,), ends=(i + 1,)), (batch, 1, 1, 1)) for i in range(2)
    )
    at, rows = _axis(b, keys, 2), (batch, 1, keys, 1)
    valid = _compare(b, "less", at, count, rows)
    if given.paged:
        held = b.op("not", b.op("less", table := m.ins.inputs[4], b.scalar(0, table)))
        pages = (batch, table.shape.lens[1], m.ins.inputs[1].shape.lens[2])
        held = b.reshape(b.broadcast(b.unsqueeze(b.convert(held, Type.bool_type), [2]), pages), rows)
        valid = b.op("logical_and", valid, held)
    v = b.op("where", b.broadcast(valid, v.shape.lens), v, b.scalar(0, v))
    lens = (batch, 1, queries, keys)
    seen = b.broadcast(b.reshape(valid, (batch, 1, 1, keys)), lens)
    at = b.reshape(at, (1, 1, 1, keys))
    position = b.op("add", *(b.broadcast(x, (batch, 1, queries, 1)) for x in (start, _axis(b, queries, 2))))
    if given.causal:
        seen = b.op("logical_and", seen, b.op("not", _compare(b, "greater", at, position, lens)))
    if given.window > 0:
        first = b.op("sub", position, b.scalar(given.window, position))
        seen = b.op("logical_and", seen, _compare(b, "greater", at, first, lens))
    if not given.softcap > 0 and not given.sink:
        return b.convert(b.op("attention", q, k, v, seen, scale=given.scale), made.type)
    grouped = (batch, shared, heads // shared * queries, depth)
    scores = b.op("dot", b.reshape(q, grouped), b.transpose(k, (0, 1, 3, 2)))
    scores = b.reshape(scores, (batch, heads, queries, keys))
    scores = b.op("mul", scores, b.scalar(given.scale, scores))
    if given.softcap > 0:
        cap = b.scalar(given.softcap, scores)
        scores = b.op("mul", b.op("tanh", b.op("div", scores, cap)), cap)
    whole = scores.shape.lens
    scores = b.op("where", b.broadcast(seen, whole), scores, b.scalar(-np.inf, scores))
    column = (batch, heads, queries, 1)
    if given.sink:
        sink = b.broadcast(b.reshape(b.convert(m.ins.inputs[-1], wide), (1, heads, 1, 1)), column)
    else:
        sink = b.scalar(-np.inf, Shape(wide, column))
    top = b.op("max", b.op("reduce_max", scores, axes=(3,)), sink)
    unseen = b.op("equal", top, b.scalar(-np.inf, top))
    top = b.op("where", b.convert(unseen, Type.bool_type), b.scalar(0, top), top)
    weights = b.op("exp", b.op("sub", scores, b.broadcast(top, whole)))
    total = b.op("reduce_sum", weights, axes=(3,))
    total = b.op("add", total, b.op("exp", b.op("sub", sink, top)))
    none = b.convert(b.op("equal", total, b.scalar(0, total)), Type.bool_type)
    total = b.op("where", none, b.scalar(1, total), total)
    weights = b.op("div", weights, b.broadcast(total, whole))
    mixed = b.op("dot", b.reshape(weights, (batch, shared, heads // shared * queries, keys)), v)
    return b.convert(b.reshape(mixed, made.lens), made.type)


RewriteCachedAttention = rule_pass("rewrite_cached_attention", with_mask)
