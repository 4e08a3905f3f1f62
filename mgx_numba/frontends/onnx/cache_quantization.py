"""Key and value caches of narrower elements than keys and values: scales, and the encoding of new rows."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .attention import repeat_heads
from .builder import Builder
from .node import Node

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
