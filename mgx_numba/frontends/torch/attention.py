"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from ...core.dim import Dim, Length, known_equal, known_same
from ...core.shape import common_lens
from ...core.types import Type
from ...errors import ShapeError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Lens


@register("scaled_dot_product_attention")
def attention(
    g: AtenBuilder,
    node: AtenNode,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    attn_mask: Instruction | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Instruction:
    """Emit attention for inputs of 2 or more axes."""
    return attend(g, q, k, v, attn_mask, is_causal, scale)


@register("_scaled_dot_product_flash_attention_for_cpu")
def flash_for_cpu(
    g: AtenBuilder,
    node: AtenNode,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Instruction | None = None,
    scale: float | None = None,
) -> list[Instruction | None]:
    """Emit attention; the logarithms of sums are no result."""
    return [attend(g, q, k, v, attn_mask, is_causal, scale), None]


@register("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def efficient(
    g: AtenBuilder,
    node: AtenNode,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    attn_bias: Instruction | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> list[Instruction | None]:
    """Emit attention; all further results are for training."""
    return [attend(g, q, k, v, attn_bias, is_causal, scale), *[None] * (len(node.types) - 1)]


@register("_scaled_dot_product_flash_attention")
def flash(
    g: AtenBuilder,
    node: AtenNode,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> list[Instruction | None]:
    """Emit attention; all further results are for training."""
    return [attend(g, q, k, v, None, is_causal, scale), *[None] * (len(node.types) - 1)]


def attend(
    g: AtenBuilder,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    mask: Instruction | None,
    causal: bool,
    scale: float | None,
) -> Instruction:
    """Emit ``softmax(scale * q @ k^T + mask) @ v`` for [..., heads, positions, features], whose outer axes broadcast.

    ``causal`` hides from query i the keys after i, also where there are more keys than queries.
    """
    axes = max(rank(x) for x in (q, k, v))
    batch = common_lens(*(g.lens(x)[:-3] for x in (q, k, v)))
    q, k, v = (_of_four(g, x, batch) for x in (q, k, v))
    _, heads, s, d = g.lens(q)
    _, shared, t, _ = g.lens(k)
    if known_equal(heads, 1) and not known_equal(shared, 1):
        heads = shared
        q = g.broadcast(q, (g.lens(q)[0], heads, s, d))
    if shared != heads and not known_equal(shared, 1) and heads % shared:
        raise ShapeError(f"{shared} key heads do not divide {heads} query heads")
    factor = scale if scale is not None else None if isinstance(d, Dim) else 1 / math.sqrt(d) if d else 1.0
    if factor is None:
        raise ShapeError("attention needs a fixed number of features")
    if mask is not None:
        mask = _of_four(g, mask, batch if rank(mask) > 4 else g.lens(mask)[:-3])
        if mask.shape.type is not Type.bool_type:
            mask = g.cast(mask, q.shape.type)
    if causal and not known_equal(s, t):
        seen = _lower(g, s, t)
        mask = seen if mask is None else g.pointwise("logical_and", mask, seen)
        causal = False
    y = g.op("attention", q, k, v, *([] if mask is None else [mask]), scale=factor, causal=causal)
    return g.reshape(y, (*(*batch, heads)[: axes - 2], s, g.lens(v)[3]))


def _lower(g: AtenBuilder, s: Length, t: Length) -> Instruction:
    """Emit the mask of the keys [t] up to the position of each query [s]."""
    if isinstance(s, Dim) or isinstance(t, Dim):
        return g.pointwise("less_or_equal", g.iota(t, 1, 2), g.iota(s, 0, 2))
    return g.literal(np.arange(t) <= np.arange(s)[:, None])


def _of_four(g: AtenBuilder, x: Instruction, batch: Lens) -> Instruction:
    """Return ``x`` with four axes: outer axes are broadcast to the lengths ``batch`` and merged."""
    lens = (*(1,) * (3 - rank(x)), *g.lens(x))
    wide = g.broadcast(x, (*batch, *lens[-3:])) if batch and not known_same(batch, lens[:-3]) else x
    return g.reshape(wide, (math.prod(batch), *lens[-3:]))
