"""Parts of operators with a key and value cache: spans of the new tokens, heads, rotation and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...core.dim import Dim, equal, known_equal
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .attention import Mask, repeat_heads, split_heads
from .builder import Builder
from .node import Node
from .rotary import rotate, table_rows

NARROW = (Type.half_type, Type.bf16_type)


@dataclass
class Spans:
    """The new tokens and valid keys of each sequence, int64.

    Attributes:
        start: position of the first new token, [b, 1].
        ends: number of valid keys after the step, [b, 1].
        tokens: position of each new token, [b, s].
        written: as ``tokens``, with -1 for padding, which is not written.
    """

    start: Instruction
    ends: Instruction
    tokens: Instruction
    written: Instruction

    def limits(self, g: Builder) -> Instruction:
        """Emit start and ends as [b, 2]."""
        return g.op("concat", self.start, self.ends, axis=1)


def score_scale(node: Node, head: int) -> float:
    """Return the factor of the scores."""
    return node.get_float("scale", 0.0) or 1 / math.sqrt(head)


def in_float(g: Builder, x: Instruction, make: Callable[[Instruction], Instruction]) -> Instruction:
    """Emit ``make(x)`` in float32, rounded once to the type of ``x``."""
    if x.shape.type not in NARROW:
        return make(x)
    return g.convert(make(g.convert(x, Type.float_type)), x.shape.type)


def rotated(
    g: Builder, x: Instruction, cosine: Instruction, sine: Instruction, where: Instruction, interleaved: bool
) -> Instruction:
    """Emit x [b, h, s, d] rotated by the tables' angles of the positions ``where`` [b, s]."""
    cosine, sine = (table_rows(g, table, where, x.shape.type) for table in (cosine, sine))
    return rotate(g, x, cosine, sine, interleaved)


def normalized(g: Builder, x: Instruction, weight: Instruction, epsilon: float) -> Instruction:
    """Emit the root mean square normalisation of each head's features."""

    def make(x: Instruction) -> Instruction:
        square = g.op("reduce_mean", g.pointwise("mul", x, x), axes=(3,))
        factor = g.pointwise("rsqrt", g.pointwise("add", square, g.like(epsilon, x)))
        return g.pointwise("mul", g.pointwise("mul", x, factor), g.convert(weight, x.shape.type))

    return in_float(g, x, make)


def with_sink(
    g: Builder, q: Instruction, k: Instruction, v: Instruction, mask: Mask, sink: Instruction
) -> tuple[Instruction, Instruction]:
    """Append a visible key and value of zeros, with the sink's score per head as its bias."""
    b, h, s, _ = g.lens(q)
    whole = g.lens(k)[2]
    k, v = (g.op("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 0)) for x in (k, v))
    if mask.allowed is not None:
        allowed = g.broadcast(mask.allowed, (b, 1, s, whole))
        mask.allowed = g.op("concat", allowed, g.broadcast(g.literal(True), (b, 1, s, 1)), axis=3)
    bias = g.like(0, q) if mask.bias is None else mask.bias
    column = g.reshape(g.convert(sink, q.shape.type), (h, 1, 1))
    parts = g.broadcast(bias, (b, h, s, whole)), g.broadcast(column, (b, h, s, 1))
    mask.bias = g.op("concat", *parts, axis=3)
    return k, v


def grouped(
    g: Builder, query: Instruction, key: Instruction | None, value: Instruction | None, heads: int, shared: int
) -> tuple[Instruction, Instruction, Instruction]:
    """Emit queries, keys and values, which may be packed, as [b, heads, s, d]."""
    if key is not None and value is not None:
        return split_heads(g, query, heads), split_heads(g, key, shared), split_heads(g, value, shared)
    packed = split_heads(g, query, heads + 2 * shared)
    q, k, v = g.split(packed, 1, [heads, shared, shared])
    return q, k, v


def is_known_prompt(g: Builder, total: Instruction, s: int) -> bool | None:
    """Return whether all tokens are new; None if lengths or values of a run decide that."""
    if g.constants.value(total) is None:
        return None
    wanted = g.int_value(total, "total_sequence_length")
    return None if isinstance(equal(wanted, s), Dim) else known_equal(wanted, s)


def spans_of(
    g: Builder,
    lens: tuple[int, ...],
    last: Instruction,
    total: Instruction,
    query_lengths: Instruction | None,
) -> Spans:
    """Emit the spans of queries [b, h, s, d]; ``last`` has the last position of each sequence."""
    b, _, s, _ = lens
    ends = g.pointwise("add", g.reshape(g.convert(last, Type.int64_type), (b, 1)), g.literal(np.int64(1)))
    if query_lengths is None:
        start = _start(g, ends, total, s, is_known_prompt(g, total, s))
        tokens = g.pointwise("add", start, g.iota(s, 1, 2))
        return Spans(start, ends, tokens, tokens)
    valid = g.reshape(g.convert(query_lengths, Type.int64_type), (b, 1))
    start = g.pointwise("sub", ends, valid)
    tokens = g.pointwise("add", start, g.iota(s, 1, 2))
    is_token = g.pointwise("less", g.iota(s, 1, 2), valid)
    return Spans(start, ends, tokens, g.pointwise("where", is_token, tokens, g.like(-1, tokens)))


def _start(g: Builder, ends: Instruction, total: Instruction, s: int, prompt: bool | None) -> Instruction:
    """Emit the position [b, 1] of each sequence's first new token: 0 for a prompt, else the earlier tokens' number."""
    if prompt:
        return g.broadcast(g.literal(np.int64(0)), g.lens(ends))
    before = g.pointwise("sub", ends, g.literal(s, Type.int64_type))
    if prompt is False:
        return before
    return g.pointwise("where", is_prompt(g, total, s), g.literal(np.int64(0)), before)


def is_prompt(g: Builder, total: Instruction, s: int) -> Instruction:
    """Emit whether all tokens are new, [1, 1]."""
    return g.pointwise("equal", g.reshape(g.convert(total, Type.int64_type), (1, 1)), g.literal(s, Type.int64_type))


FLOAT8_LARGEST = 448.0
"""Largest number of float8e4m3fn: larger values become it."""
MIDDLE = 8
"""Offset of 4-bit codes: a nibble holds the signed code plus 8, as in ONNX Runtime's kernels."""


@dataclass
class CacheFormat:
    """How a cache holds values: ``code * scale``, with integer codes of ``bits`` bits; 0 for floating-point codes.

    Attributes:
        type: element type of the cache; None for that of the values.
        bits: 0, 4 (two codes in a byte, the first in the low half) or 8.
        scale: float32, [1, heads or 1, 1, features or 1].
        features: features of a head.
    """

    type: Type | None = None
    bits: int = 0
    scale: Instruction | None = None
    features: int = 0

    def encode(self, g: Builder, new: Instruction) -> Instruction:
        """Emit new rows [b, h, s, d] in the cache's form."""
        if self.type is None:
            return new
        if self.scale is None and self.type is not Type.fp8e4m3fn_type:
            return g.convert(new, self.type)
        ratio = g.convert(new, Type.float_type)
        if self.scale is not None:
            ratio = g.pointwise("div", ratio, self.scale)
        if not self.bits:
            ends = (g.like(x, ratio) for x in (-FLOAT8_LARGEST, FLOAT8_LARGEST))
            return g.convert(g.pointwise("clip", ratio, *ends), self.type)
        most = 2 ** (self.bits - 1)
        bounds = (g.like(float(n), ratio) for n in (-most, most - 1))
        codes = g.pointwise("clip", g.pointwise("nearbyint", ratio), *bounds)
        if self.bits == 8:
            return g.convert(codes, Type.int8_type)
        b, h, s, d = g.lens(codes)
        nibbles = g.convert(g.pointwise("add", codes, g.like(float(MIDDLE), codes)), Type.uint8_type)
        if d % 2:
            nibbles = g.op("pad", nibbles, pads=(0,) * 7 + (1,))
        pairs = g.reshape(nibbles, (b, h, s, (d + 1) // 2, 2))
        low, high = (g.squeeze(part, [4]) for part in g.split(pairs, 4, [1, 1]))
        shifted = g.pointwise("mul", high, g.like(16, high))
        return g.pointwise("add", low, shifted)

    def codes(self, g: Builder, cache: Instruction) -> Instruction:
        """Emit the codes of a cache [b, h, t, d] as int8, or its values if it has no scale."""
        if self.bits != 4:
            return cache
        b, h, t, half = g.lens(cache)
        high = g.pointwise("div", cache, g.like(16, cache))
        low = g.pointwise("sub", cache, g.pointwise("mul", high, g.like(16, high)))
        both = g.op("concat", g.unsqueeze(low, [4]), g.unsqueeze(high, [4]), axis=4)
        whole = g.convert(g.reshape(both, (b, h, t, 2 * half)), Type.int8_type)
        codes = g.pointwise("sub", whole, g.literal(np.int8(MIDDLE)))
        return codes if self.features == 2 * half else g.slice(codes, 3, 0, self.features)

    def scaled(self, g: Builder, x: Instruction, heads: int) -> Instruction:
        """Emit x [b, heads, s, d] times the scale of the head that it shares, in float32."""
        if self.scale is None:
            return x
        scale, own = self.scale, g.lens(self.scale)[1]
        return g.pointwise("mul", g.convert(x, Type.float_type), repeat_heads(g, scale, heads // own if own > 1 else 1))


def cache_formats(
    g: Builder,
    node: Node,
    past_key: Instruction | None,
    past_value: Instruction | None,
    k_scale: Instruction | None,
    v_scale: Instruction | None,
    features: int,
    heads: int,
) -> tuple[CacheFormat, CacheFormat]:
    """Return the formats of both caches, of ``heads`` heads of ``features`` features."""
    bits = node.get_int("kv_cache_bit_width", 0)
    found = []
    for name, past, scale in (("k", past_key, k_scale), ("v", past_value, v_scale)):
        kind = node.get_str(f"{name}_quant_type", "NONE")
        if kind not in ("NONE", "PER_TENSOR", "PER_CHANNEL"):
            raise ParseError(f"{name}_quant_type is {kind!r}, expected NONE, PER_TENSOR or PER_CHANNEL")
        held = None if past is None else past.shape.type
        if kind == "NONE":
            found.append(CacheFormat(held if held is not None and held.is_floating else None))
            continue
        if scale is None:
            raise ParseError(f"{name}_quant_type is {kind}, but there is no input '{name}_scale'")
        own = bits or (4 if held is Type.uint8_type else 8)
        if held is Type.fp8e4m3fn_type:
            own = 0
        elif own not in (4, 8):
            raise ParseError(f"kv_cache_bit_width is {bits}, expected 4 or 8")
        wide = g.convert(scale, Type.float_type)
        count = 1 if kind == "PER_TENSOR" else heads * features
        if scale.shape.elements != count:
            raise ShapeError(f"{name}_scale has {scale.shape.elements} elements, expected {count} ({kind})")
        shape = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, heads, 1, features)
        found.append(CacheFormat(held or Type.int8_type, own, g.reshape(wide, shape), features))
    return found[0], found[1]
