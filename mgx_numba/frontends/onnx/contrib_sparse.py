"""ONNX Runtime's attention to some blocks of the keys."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .attention import Mask, attend, merge_heads
from .builder import Builder
from .cached_tokens import Spans, grouped, in_float, rotated, score_scale, spans_of
from .node import Node
from .registry import MICROSOFT, register


@register("SparseAttention", domain=MICROSOFT)
def sparse_attention(
    g: Builder,
    node: Node,
    query: Instruction,
    key: Instruction | None,
    value: Instruction | None,
    past_key: Instruction,
    past_value: Instruction,
    rows: Instruction,
    columns: Instruction,
    total: Instruction,
    lengths: Instruction,
    cosine: Instruction | None = None,
    sine: Instruction | None = None,
) -> list[Instruction]:
    """Emit causal attention over caches [b, kv_heads, t, d], of which a query sees the blocks of its layout."""
    heads, shared, block = node.get_int("num_heads"), node.get_int("kv_num_heads"), node.get_int("sparse_block_size")
    q, k, v = grouped(g, query, key, value, heads, shared)
    last = g.pointwise("sub", lengths, g.like(1, lengths))
    spans = spans_of(g, g.lens(q), last, total, None)
    if node.get_bool("do_rotary"):
        if cosine is None or sine is None:
            raise ParseError("do_rotary needs inputs 'cos_cache' and 'sin_cache'")
        interleaved = node.get_bool("rotary_interleaved")
        q, k = (in_float(g, x, lambda x: rotated(g, x, cosine, sine, spans.tokens, interleaved)) for x in (q, k))
    keys, values = (g.op("update_cache", old, new, spans.tokens) for old, new in ((past_key, k), (past_value, v)))
    b, _, s, d = g.lens(q)
    whole = g.lens(keys)[2]
    at = g.iota(whole, 3, 4)
    mask = Mask(g.pointwise("less", at, g.reshape(spans.ends, (b, 1, 1, 1))))
    mask.restrict(g, g.pointwise("less_or_equal", at, g.reshape(spans.tokens, (b, 1, s, 1))))
    layouts = _layouts(g.constant(rows, "block_row_indices"), g.constant(columns, "block_col_indices"))
    if heads % len(layouts) or layouts.shape[2] * block < whole:
        raise ShapeError(
            f"{len(layouts)} layouts of {layouts.shape[2]} blocks do not fit {heads} heads and {whole} keys"
        )
    mask.restrict(g, _seen(g, layouts, spans, (heads, block, whole)))
    return [merge_heads(g, attend(g, q, keys, values, score_scale(node, d), mask)), keys, values]


def _layouts(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return bool [layouts, query blocks, key blocks] of a CSR form."""
    count = rows.shape[1] - 1
    found = np.zeros((len(rows), count, count), bool)
    for layout, (starts, own) in enumerate(zip(rows, columns, strict=True)):
        for row in range(count):
            found[layout, row, own[starts[row] : starts[row + 1]]] = True
    return found


def _seen(g: Builder, layouts: np.ndarray, spans: Spans, lens: tuple[int, int, int]) -> Instruction:
    """Emit whether a query's block sees a key's block, [b, heads, s, keys]."""
    heads, block, whole = lens
    by_key = layouts[:, :, np.arange(whole) // block][np.arange(heads) % len(layouts)]
    table = g.literal(np.ascontiguousarray(by_key.transpose(1, 0, 2)))  # [query blocks, heads, keys]
    places = g.pointwise("div", spans.tokens, g.literal(block, Type.int64_type))
    last = g.literal(layouts.shape[1] - 1, Type.int64_type)  # padding tokens may lie behind all blocks
    return g.transpose(g.op("gather", table, g.pointwise("min", places, last), axis=0), (0, 2, 1, 3))
