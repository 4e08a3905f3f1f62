"""Attention, and the operators around its key and value caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.dim import known_equal, known_less
from ..core.shape import Shape
from ..core.types import from_numpy
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, broadcast_lens, meet_dim
from .softmax import softmax


def attended_shape(
    op: Operator, q: Shape, k: Shape, v: Shape, rows: Shape, keys: str = "k", values: str = "v"
) -> Shape:
    """Return the shape of attention to ``k`` and ``v``; all are [batch, head, position, feature].

    Args:
        op: the operator that fails if lengths differ.
        q, k, v: queries, keys and values.
        rows: has the batch length of the keys.
        keys, values: names for messages.
    """
    for what, a, b in (
        (f"batch lengths of q and {keys}", q.dims[0], rows.dims[0]),
        (f"batch lengths of {keys} and {values}", k.dims[0], v.dims[0]),
        (f"heads of {keys} and {values}", k.dims[1], v.dims[1]),
        (f"positions of {keys} and {values}", k.dims[2], v.dims[2]),
        (f"features of q and {keys}", q.dims[3], k.dims[3]),
    ):
        meet_dim(op, what, a, b)
    heads, shared = q.dims[1].max, k.dims[1].max
    if known_less(shared, 1) or not (known_equal(heads, shared) or heads % shared == 0):
        raise op.fail(f"{shared} key heads do not divide {heads} query heads")
    return Shape.dynamic(q.type, [*q.dims[:3], v.dims[3]])


@register
@dataclass(frozen=True)
class Attention(Operator):
    """``softmax(scale * q @ k^T + mask) @ v``, the softmax in float32 or wider.

    Inputs are q [b, h, s, d], k [b, hk, t, d], v [b, hk, t, e] (hk divides h; query heads share key heads in
    order) and perhaps a mask that broadcasts to [b, h, s, t]. A bool mask keeps scores where true and replaces others
    by ``fill``, masks of other types are added. Its
    batch length m may also divide b: batch i has the mask i % m, as the windows of several images do. With ``causal``
    position i of the queries sees keys up to i + t - s. A row that sees no key gives zeros, as ONNX Attention says, or
    with ``nan_rows`` NaN, as softmax says where attention is written out. With ``bfloat16_products`` the operands of
    both products may be rounded to bfloat16, as those of `Dot`.
    """

    name: ClassVar[str] = "attention"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("bfloat16_products", "fill")
    scale: float = 1.0
    causal: bool = False
    nan_rows: bool = False
    bfloat16_products: bool = False
    fill: float = -math.inf

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        q, k, v = self.expect_inputs(inputs, 3, 4)[:3]
        self.expect_same_type(inputs[:3])
        if not q.type.is_floating:
            raise self.fail(f"inputs must be floating point, got {q.type.name}")
        if any(s.ndim != 4 for s in inputs[:3]):
            raise self.fail(f"q, k and v need 4 axes (batch, head, position, feature), got {q}; {k}; {v}")
        result = attended_shape(self, q, k, v, k)
        if len(inputs) == 4 and not any_dynamic(inputs):
            scores = (q.lens[0], q.dims[1].max, q.lens[2], k.lens[2])
            lens = inputs[3].lens
            repeats = len(lens) == 4 and (known_equal(lens[0], scores[0]) or (lens[0] > 0 and scores[0] % lens[0] == 0))
            if broadcast_lens(self, scores, lens[1:] if repeats else lens) != scores:
                raise self.fail(f"mask {list(lens)} does not broadcast to {list(scores)}")
        return result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        wide = from_numpy(args[0].dtype).compute.numpy
        q, k, v = (a.astype(wide, copy=False) for a in args[:3])
        (b, h, s, d), (hk, t) = q.shape, k.shape[1:3]
        grouped = q.reshape(b, hk, h // hk * s, d)
        scores = np.matmul(grouped, np.swapaxes(k, 2, 3)).reshape(b, h, s, t) * wide.type(self.scale)
        if len(args) == 4:
            mask = args[3]
            if mask.ndim == 4 and 1 < mask.shape[0] < b:
                mask = np.tile(mask, (b // mask.shape[0], 1, 1, 1))
            if mask.dtype == np.bool_:
                scores = np.where(mask, scores, wide.type(self.fill))
            else:
                scores = scores + mask.astype(wide)
        if self.causal:
            scores = np.where(np.arange(t) <= np.arange(s)[:, None] + (t - s), scores, -np.inf)
        if t == 0:
            return np.zeros(output.lens, output.type.numpy)
        unseen = (scores == -np.inf).all(3, keepdims=True) & (not self.nan_rows)
        weights = softmax(np.where(unseen, 0, scores), 3) * ~unseen
        mixed = np.matmul(weights.astype(wide, copy=False).reshape(b, hk, h // hk * s, t), v)
        return mixed.reshape(b, h, s, v.shape[3]).astype(output.type.numpy, copy=False)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        b, h, s, d = inputs[0].max_lens
        t, e = inputs[2].max_lens[2:]
        return b * h * s * t * (2 * d + 2 * e + 5)


@register
@dataclass(frozen=True)
class GqaRotaryEmbedding(Operator):
    """Rotary position embedding of packed heads (queries, keys, values).

    Inputs are the heads [b, num_heads + 2 * kv_num_heads, s, d], the position of the last token of each
    sequence, and the cosine and sine tables [positions, r / 2]; the first r features rotate, in neighbouring
    pairs if ``interleaved``, else as two halves. A single token stands at its sequence's position, several at
    0, 1, ... Values pass unchanged.
    """

    name: ClassVar[str] = "gqa_rotary_embedding"
    num_heads: int = 1
    kv_num_heads: int = 1
    interleaved: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        heads, _, cosine, sine = self.expect_inputs(inputs, 4)
        if heads.ndim != 4 or heads.dims[1].max != self.num_heads + 2 * self.kv_num_heads:
            raise self.fail(
                f"expected [b, {self.num_heads + 2 * self.kv_num_heads}, s, d] for {self.num_heads} query and"
                f" {self.kv_num_heads} key heads, got {heads}"
            )
        if cosine.ndim != 2 or cosine.dims != sine.dims or 2 * cosine.dims[1].max > heads.dims[3].max:
            raise self.fail(f"tables {cosine} and {sine} do not fit {heads.dims[3]} features")
        return heads.to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, last, cosine, sine = args
        wide = from_numpy(x.dtype).compute.numpy
        b, _, s, _ = x.shape
        position = np.broadcast_to(np.arange(s) if s != 1 else last.reshape(-1)[:b, None].astype(np.int64), (b, s))
        if position.size and not 0 <= position.min() <= position.max() < cosine.shape[0]:
            raise self.fail(f"positions up to {position.max()} are outside of tables of {cosine.shape[0]} positions")
        cos, sin = (table.astype(wide)[position][:, None] for table in (cosine, sine))
        rotated = self.num_heads + self.kv_num_heads
        width = 2 * cosine.shape[1]
        result = x.astype(wide)
        part = result[:, :rotated, :, :width]
        pair = (
            (np.s_[..., ::2], np.s_[..., 1::2])
            if self.interleaved
            else (
                np.s_[..., : width // 2],
                np.s_[..., width // 2 :],
            )
        )
        first, second = part[pair[0]].copy(), part[pair[1]].copy()
        part[pair[0]] = first * cos - second * sin
        part[pair[1]] = second * cos + first * sin
        return result.astype(x.dtype, copy=False)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 3 * output.elements


@register
@dataclass(frozen=True)
class ConcatPastPresent(Operator):
    """A key or value cache [b, heads, capacity, d] with the present tokens written into it.

    Inputs are the present tokens [b, heads, s, d], the position of the last token of each sequence, and the
    cache. Several tokens go to the start of the cache (a prompt), a single one to its sequence's position;
    one that does not fit is dropped.
    """

    name: ClassVar[str] = "concat_past_present"
    kv_num_heads: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        present, _, past = self.expect_inputs(inputs, 3)
        self.expect_same_type([present, past])
        if past.is_dynamic:
            raise self.fail(f"the cache must have static lengths, got {past}")
        if present.ndim != 4 or past.ndim != 4:
            raise self.fail(f"present tokens and cache need 4 axes, got {present} and {past}")
        for axis in (0, 1, 3):
            meet_dim(self, f"lengths of axis {axis} of present and cache", present.dims[axis], past.dims[axis])
        if present.dims[2].min > past.lens[2]:
            raise self.fail(f"{present.dims[2]} present tokens do not fit a cache of {past.lens[2]}")
        return past

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        present, last, past = args
        result = past.copy()
        count = present.shape[2]
        if count != 1:
            result[:, :, :count] = present
            return result
        for row, position in enumerate(last.reshape(-1)[: present.shape[0]].tolist()):
            if 0 <= position < past.shape[2]:
                result[row, :, position] = present[row, :, 0]
        return result
