"""ONNX's Attention operator, and functions that all attention operators share."""

from __future__ import annotations

import math

import numpy as np

from ...core.dim import Dim, known_equal
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import ir_type


@dataclass
class Mask:
    """Restrictions and biases of attention scores [b, h, s, t].

    Attributes:
        allowed: bool, true where a query may see a key; ``None`` means everywhere.
        bias: added to the scores; ``None`` means no bias.
        causal: also hide keys after the query's position (queries are the last s of t).
    """

    allowed: Instruction | None = None
    bias: Instruction | None = None
    causal: bool = False

    def restrict(self, g: Builder, allowed: Instruction) -> None:
        """Hide the keys where ``allowed`` is false."""
        self.allowed = allowed if self.allowed is None else g.pointwise("logical_and", self.allowed, allowed)

    def add(self, g: Builder, bias: Instruction) -> None:
        """Add ``bias`` to the scores."""
        self.bias = bias if self.bias is None else g.pointwise("add", self.bias, bias)

    def combined(self, g: Builder, type: Type) -> Instruction | None:
        """Return mask and bias as one operand of the ``attention`` operator, without ``causal``."""
        if self.bias is None:
            return self.allowed
        bias = g.convert(self.bias, type)
        if self.allowed is None:
            return bias
        return g.pointwise("where", self.allowed, bias, g.literal(-np.inf, type))


def restrict_causal(g: Builder, mask: Mask, s: int, t: int, past: int) -> None:
    """Hide from each of ``s`` queries, starting at position ``past``, the later keys; there are ``t`` keys."""
    if known_equal(past, t - s):
        mask.causal = True
    else:
        mask.restrict(g, _causal(g, s, t, past))


def _causal(g: Builder, s: int, t: int, past: int) -> Instruction:
    """Emit the causal mask of keys [t] for queries [s] starting at position ``past``."""
    g.limit(s * t, "the mask")
    if not any(isinstance(n, Dim) for n in (s, t, past)):
        return g.literal(np.arange(t) <= np.arange(s)[:, None] + past)
    queries = g.pointwise("add", g.iota(s, 0, 2), g.literal(past, Type.int64_type))
    return g.pointwise("less_or_equal", g.iota(t, 1, 2), queries)


def split_heads(g: Builder, x: Instruction, heads: int) -> Instruction:
    """Emit [b, s, heads * d] as [b, heads, s, d]."""
    lens = g.lens(x)
    if len(lens) != 3 or heads < 1 or lens[2] % heads:
        raise ShapeError(f"lengths {list(lens)} do not split into {heads} heads")
    return g.transpose(g.reshape(x, (*lens[:2], heads, lens[2] // heads)), (0, 2, 1, 3))


def merge_heads(g: Builder, x: Instruction) -> Instruction:
    """Emit [b, heads, s, d] as [b, s, heads * d]."""
    b, h, s, d = g.lens(x)
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (b, s, h * d))


def repeat_heads(g: Builder, x: Instruction, count: int) -> Instruction:
    """Emit [b, h, t, d] with every head repeated ``count`` times in a row."""
    if count == 1:
        return x
    b, h, t, d = g.lens(x)
    return g.reshape(g.broadcast(g.unsqueeze(x, [2]), (b, h, count, t, d)), (b, h * count, t, d))


def attend(
    g: Builder, q: Instruction, k: Instruction, v: Instruction, scale: float, mask: Mask, softcap: float = 0.0
) -> Instruction:
    """Emit ``softmax(softcap(scale * q @ k^T) + mask) @ v`` for q [b, h, s, d], k [b, hk, t, d], v [b, hk, t, e]."""
    if softcap == 0 and q.shape.type == k.shape.type == v.shape.type:
        combined = mask.combined(g, q.shape.type)
        extra = [] if combined is None else [combined]
        return g.op("attention", q, k, v, *extra, scale=scale, causal=mask.causal)
    return primitive_attention(g, q, k, v, scale, mask, softcap)[-1]


def softmax_type(requested: Type) -> Type:
    """Return the type in which a softmax is computed: double for double, else float32, since scores may exceed the
    range of float16."""
    return requested if requested is Type.double_type else Type.float_type


def primitive_attention(
    g: Builder,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    scale: float,
    mask: Mask,
    softcap: float,
    precision: Type | None = None,
) -> tuple[Instruction, Instruction, Instruction, Instruction, Instruction]:
    """Emit attention by primitive operators.

    Returns:
        The scores, the scores after softcap, the scores after softcap and mask, the softmax weights, and the result.

    ``precision`` is the type of the softmax, by default `softmax_type` of ``q``'s type.
    """
    precision = precision or softmax_type(q.shape.type)
    (_, h, s, _), (_, shared, t, _) = g.lens(q), g.lens(k)
    if shared < 1 or h % shared:
        raise ShapeError(f"{shared} key heads do not divide {h} query heads")
    k, v = (repeat_heads(g, x, h // shared) for x in (k, v))
    scores = mul_scalar(g, g.op("dot", q, g.swap_last(k)), scale)
    capped = scores
    if softcap:
        capped = mul_scalar(g, g.op("tanh", mul_scalar(g, scores, 1 / softcap)), softcap)
    if mask.causal:
        mask.restrict(g, _causal(g, s, t, t - s))
    masked, combined = capped, mask.combined(g, q.shape.type)
    if combined is not None and combined.shape.type is Type.bool_type:
        masked = g.pointwise("where", combined, capped, g.literal(-np.inf, q.shape.type))
    elif combined is not None:
        masked = g.pointwise("add", capped, combined)
    wide = g.convert(masked, precision)
    weights = g.op("softmax", wide, axis=3)
    if combined is not None:
        seen = g.pointwise("greater", g.reduce("reduce_max", wide, [3]), g.literal(-np.inf, precision))
        weights = g.pointwise("where", seen, weights, g.like(0, weights))
    weights = g.convert(weights, q.shape.type)
    return scores, capped, masked, weights, g.op("dot", g.convert(weights, v.shape.type), v)


@register("Attention")
def attention(
    g: Builder,
    node: Node,
    q: Instruction,
    k: Instruction,
    v: Instruction,
    attn_mask: Instruction | None = None,
    past_key: Instruction | None = None,
    past_value: Instruction | None = None,
    nonpad: Instruction | None = None,
) -> list[Instruction | None]:
    """Emit Attention for 3-D inputs, whose heads are split, or 4-D inputs.

    The outputs are Y, the key and value caches, and the scores that ``qk_matmul_output_mode`` selects.
    """
    if (past_key is None) != (past_value is None):
        raise ParseError("past_key and past_value must be given together")
    if nonpad is not None and past_key is not None:
        raise ParseError("nonpad_kv_seqlen and past_key must not be given together")
    flat = rank(q) == 3
    if flat:
        kv_heads = node.get_int("kv_num_heads")
        q, k, v = (
            split_heads(g, q, node.get_int("q_num_heads")),
            split_heads(g, k, kv_heads),
            split_heads(g, v, kv_heads),
        )
    if not rank(q) == rank(k) == rank(v) == 4:
        raise ParseError(f"Q, K and V have {rank(q)}, {rank(k)} and {rank(v)} dimensions, expected 3 or 4 each")
    past = 0
    if past_key is not None and past_value is not None:
        past = g.lens(past_key)[2]
        k, v = g.op("concat", past_key, k, axis=2), g.op("concat", past_value, v, axis=2)
    scale = node.get_float("scale", 1 / math.sqrt(g.lens(q)[3]) if g.lens(q)[3] else 1.0)
    softcap = node.get_float("softcap", 0.0)
    mask = Mask()
    if attn_mask is not None:
        _add_mask(g, mask, attn_mask, g.lens(k)[2])
    _restrict_window(g, node, mask, g.lens(q)[2], g.lens(k)[2], past, nonpad)
    requested = node.get_int("softmax_precision", 0)
    precision = softmax_type(ir_type(requested) if requested else q.shape.type)
    mode = node.get_int("qk_matmul_output_mode", 0)
    if mode not in range(4):
        raise ParseError(f"qk_matmul_output_mode is {mode}, expected 0 to 3")
    if node.wants(3) or precision not in (Type.float_type, q.shape.type) or q.shape.type != v.shape.type:
        steps = primitive_attention(g, q, k, v, scale, mask, softcap, precision)
        y, scores = steps[4], steps[mode]
    else:
        y, scores = attend(g, q, k, v, scale, mask, softcap), None
    return [merge_heads(g, y) if flat else y, k, v, scores]


def _add_mask(g: Builder, mask: Mask, given: Instruction, total: int) -> None:
    """Add the mask input to ``mask``; a last axis shorter than the keys hides the remaining keys."""
    lens = g.lens(given)
    symbolic = bool(lens) and isinstance(total - lens[-1], Dim)
    if not lens or (not _fits(lens[-1], total) if symbolic else lens[-1] > total):
        raise ShapeError(f"mask {list(lens)} does not fit {total} keys")
    boolean = given.shape.type is Type.bool_type
    missing = total - lens[-1]
    if not symbolic and missing and lens[-1] != 1:
        pads = (0,) * (2 * len(lens) - 1) + (missing,)
        given = g.op("pad", given, pads=pads, value=0.0 if boolean else -math.inf)
    if boolean:
        mask.restrict(g, given)
    else:
        mask.add(g, given)


def _fits(length: int, total: int) -> bool:
    """Return whether a mask's symbolic last length is the number of keys, or 1; no shorter mask is supported."""
    return known_equal(length, total) or length == 1 or length == total


def _restrict_window(g: Builder, node: Node, mask: Mask, s: int, t: int, past: int, nonpad: Instruction | None) -> None:
    """Add causal and sliding window limits to ``mask``, and the padding of an external cache."""
    causal = node.get_bool("is_causal")
    left, right = node.get_int("left_window_size", -1), node.get_int("right_window_size", -1)
    if min(left, right) < -1:
        raise ParseError(f"window sizes {left} and {right} must be at least -1")
    g.limit(s * t, "the mask")
    if nonpad is None:
        if causal:
            restrict_causal(g, mask, s, t, past)
        _restrict_distance(g, mask, (s, t, past), left, right)
        return
    count = g.unsqueeze(g.convert(nonpad, Type.int64_type), [1, 2, 3])
    keys = g.iota(t, 3, 4)
    mask.restrict(g, g.pointwise("less", keys, count))
    queries = g.pointwise("add", g.pointwise("sub", count, g.like(s, count)), g.iota(s, 2, 4))
    distance = g.pointwise("sub", queries, keys) if causal or left >= 0 or right >= 0 else None
    if distance is not None:
        if causal or right >= 0:
            least = 0 if causal else -right
            mask.restrict(g, g.pointwise("greater_or_equal", distance, g.like(least, distance)))
        if left >= 0:
            mask.restrict(g, g.pointwise("less_or_equal", distance, g.like(left, distance)))


def _restrict_distance(g: Builder, mask: Mask, lens: tuple[int, int, int], left: int, right: int) -> None:
    """Hide keys more than ``left`` before or ``right`` after a query.

    ``lens`` are the numbers of queries, of keys, and of keys before the first query.
    """
    s, t, past = lens
    if left < 0 and right < 0:
        return
    queries = g.pointwise("add", g.iota(s, 0, 2), g.literal(past, Type.int64_type))
    distance = g.pointwise("sub", queries, g.iota(t, 1, 2))
    for size, op, limit in ((left, "less_or_equal", left), (right, "greater_or_equal", -right)):
        allowed = g.pointwise(op, distance, g.like(limit, distance)) if size >= 0 else None
        known = None if allowed is None else g.constants.value(allowed)
        if allowed is not None and (known is None or not known.all()):
            mask.restrict(g, allowed)
