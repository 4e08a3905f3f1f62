"""Decompose attention without a kernel into two products and a softmax."""

from __future__ import annotations

import numpy as np

from ...core.dim import is_symbolic, known_equal
from ...ops.attention import Attention
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule
from .rewriter import rule_pass


def _check(m: Match) -> str | None:
    if m.options.attention_refusal is None:
        return "kernels compute all attention"
    if any(known_equal(n, 0) for i in m.ins.inputs for n in i.shape.lens):
        return "there is nothing to attend to"
    q, _, v = m.ins.inputs[:3]
    refused = m.options.attention_refusal(q.shape.type, q.shape.lens[3], v.shape.lens[3])
    return None if refused else "a kernel computes it"


def _hidden(b: RewriteBuilder, keep: Instruction, scores: Instruction, fill: float = -np.inf) -> Instruction:
    """Return the scores with ``fill`` where ``keep`` is false."""
    lens = scores.shape.lens
    return b.op("where", b.broadcast(keep, lens), scores, b.scalar(fill, scores))


def _masked(b: RewriteBuilder, mask: Instruction, scores: Instruction, fill: float) -> Instruction:
    """Return the masked scores; batch i uses mask i % m."""
    batch, *rest = lens = scores.shape.lens
    period = mask.shape.lens[0] if mask.shape.ndim == 4 else 1
    if not known_equal(period, 1) and not known_equal(period, batch):
        scores = b.reshape(scores, (batch // period, period, *rest))
    if mask.shape.type.is_floating:
        added = b.convert(mask, scores.shape.type)
        scores = b.op("add", scores, b.broadcast(added, scores.shape.lens))
    else:
        scores = _hidden(b, mask, scores, fill)
    return b.reshape(scores, lens)


@rule("rewrite_attention", op("attention"), _check, exact=True)
def written_out(m: Match, b: RewriteBuilder) -> object:
    """``attention(q, k, v, mask) -> dot(softmax(dot(q, k^T) * scale + mask), v)``, in float32 or wider."""
    given, made = m.ins.operator(Attention), m.ins.shape
    wide = made.type.compute
    q, k, v = (b.convert(i, wide) for i in m.ins.inputs[:3])
    batch, heads, queries, depth = q.shape.lens
    shared, keys = k.shape.lens[1:3]
    rows = heads // shared * queries  # heads that share keys are rows of one product
    scores = b.op("dot", b.reshape(q, (batch, shared, rows, depth)), b.transpose(k, (0, 1, 3, 2)))
    scores = b.reshape(scores, (batch, heads, queries, keys))
    scores = b.op("mul", scores, b.scalar(given.scale, scores))
    if len(m.ins.inputs) == 4:
        scores = _masked(b, m.ins.inputs[3], scores, given.fill)
    if given.causal:
        scores = _hidden(b, _seen(b, queries, keys), scores)
    if given.nan_rows:
        weights = b.op("softmax", scores, axis=3)
    else:
        top = b.op("reduce_max", scores, axes=(3,))
        unseen = b.broadcast(b.op("equal", top, b.scalar(-np.inf, top)), scores.shape.lens)
        zero = b.scalar(0, scores)
        weights = b.op("softmax", b.op("where", unseen, zero, scores), axis=3)
        weights = b.op("where", unseen, zero, weights)
    mixed = b.reshape(b.op("dot", b.reshape(weights, (batch, shared, rows, keys)), v), made.lens)
    return b.convert(mixed, made.type)


def _seen(b: RewriteBuilder, queries: int, keys: int) -> Instruction:
    """Return, for each query and key, whether the key's position is at most the query's; the last query and key have
    equal positions."""
    if not (is_symbolic(queries) or is_symbolic(keys)):
        return b.literal(np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries))
    lens = (queries, keys)
    rows = b.unsqueeze(b.op("iota", length=queries), [1])
    columns = b.op("iota", length=keys)
    before = b.number(keys - queries, columns.shape.type)
    last = b.op("add", *(b.broadcast(i, (queries, 1)) for i in (rows, before)))
    return b.op("less_or_equal", b.broadcast(columns, lens), b.broadcast(last, lens))


RewriteAttention = rule_pass("rewrite_attention", written_out)
