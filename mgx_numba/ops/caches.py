"""Key and value caches: write new rows into a cache, and attend to the valid rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.dim import known_equal
from ..core.shape import DynamicDimension, Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from .attention import attended_shape
from .base import Operator, register
from .dims import meet_dim

BYTE_TYPES = (Type.int8_type, Type.fp8e4m3fn_type)
"""Element types of caches of 8 bits."""
CACHE_TYPES = (Type.float_type, Type.double_type, Type.half_type, Type.bf16_type, *BYTE_TYPES)
"""Element types of caches that `CachedAttention` reads."""


@register
@dataclass(frozen=True)
class UpdateCache(Operator):
    """A cache with new rows written into it.

    Inputs are the cache [b, h, p, d], the rows [b, h, s, d] and int64 positions [b, s]: row i of batch n goes to
    position ``positions[n, i]``; a position outside of the result is skipped. The result has ``length`` positions (-1:
    as many as the cache). Positions that neither the cache nor a row provides are zero. A target may compute the
    result in the memory of the cache.
    """

    name: ClassVar[str] = "update_cache"
    length: int = -1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        cache, rows, positions = self.expect_inputs(inputs, 3)
        self.expect_same_type([cache, rows])
        if cache.ndim != 4 or rows.ndim != 4 or positions.ndim != 2:
            raise self.fail(f"cache and rows need 4 axes, positions 2, got {cache}; {rows}; {positions}")
        if positions.type is not Type.int64_type:
            raise self.fail(f"positions must be int64, got {positions.type.name}")
        for axis in (0, 1, 3):
            meet_dim(self, f"lengths of axis {axis} of cache and rows", cache.dims[axis], rows.dims[axis])
        for axis, of in ((0, 0), (1, 2)):
            meet_dim(self, f"axis {axis} of positions and axis {of} of rows", positions.dims[axis], rows.dims[of])
        dims = list(cache.dims)
        if not known_equal(self.length, -1):
            dims[2] = DynamicDimension(self.length, self.length)
        return Shape.dynamic(cache.type, dims)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        cache, rows, positions = args
        length = cache.shape[2] if self.length == -1 else self.length
        result = np.zeros((*cache.shape[:2], length, cache.shape[3]), cache.dtype)
        kept = min(length, cache.shape[2])
        result[:, :, :kept] = cache[:, :, :kept]
        batch, place = np.nonzero((positions >= 0) & (positions < length))
        result[batch, :, positions[batch, place]] = rows[batch, :, place]
        return result


@register
@dataclass(frozen=True)
class CachedAttention(Operator):
    """Attention to the valid rows of key and value caches, with its softmax in float32 or wider.

    Inputs are q [b, h, s, d], keys [b, hk, t, d] and values [b, hk, t, e] (hk divides h), int64 limits [b, 2], and
    with ``sink`` a score per head [h]. Limits of batch n are the position of its first query and the number of its
    valid keys: query i of batch n stands at position ``limits[n, 0] + i`` and sees key j if ``j < limits[n, 1]``, with
    ``causal`` also ``j <= position``, and with ``window`` above 0 also ``j > position - window``. A score is
    ``scale * q @ k``, with ``softcap`` above 0 ``softcap * tanh(score / softcap)``. A sink takes part in the softmax
    with a value of zero. A query that sees no key gives zeros. Caches may have another element type than q.

    With ``paged`` the caches are blocks [blocks, hk, block, d] that sequences share, and after the limits comes an
    int64 table [b, pages]: key j of batch n is row ``j % block`` of block ``table[n, j // block]``. A key of a block
    that does not exist (an entry of -1) is not seen.
    """

    name: ClassVar[str] = "cached_attention"
    scale: float = 1.0
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    sink: bool = False
    paged: bool = False

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        q, k, v, limits = self.expect_inputs(inputs, 4 + self.paged + self.sink)[:4]
        self.expect_same_type([k, v])
        if not q.type.is_floating or k.type not in CACHE_TYPES:
            known = ", ".join(t.name for t in CACHE_TYPES)
            raise self.fail(f"q must be floating point and caches one of {known}, got {q.type.name} and {k.type.name}")
        if any(s.ndim != 4 for s in inputs[:3]):
            raise self.fail(f"q and the caches need 4 axes (batch, head, position, feature), got {q}; {k}; {v}")
        if limits.type is not Type.int64_type or limits.ndim != 2 or not known_equal(limits.dims[1].max, 2):
            raise self.fail(f"limits must be int64 [batch, 2], got {limits}")
        rows = k
        if self.paged:
            rows = inputs[4]
            if rows.type is not Type.int64_type or rows.ndim != 2:
                raise self.fail(f"the table of blocks must be int64 [batch, pages], got {rows}")
        result = attended_shape(self, q, k, v, rows, "keys", "values")
        meet_dim(self, "batch lengths of q and limits", q.dims[0], limits.dims[0])
        if self.sink and (inputs[-1].ndim != 1 or not inputs[-1].type.is_floating):
            raise self.fail(f"the sink must have a floating-point score for each head, got {inputs[-1]}")
        return result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        wide = from_numpy(args[0].dtype).compute.numpy
        q, k, v = (a.astype(wide, copy=False) for a in args[:3])
        b, h, s, d = q.shape
        exists = np.ones((b, 1, 1, 1), bool)
        if self.paged:
            table, size = args[4], k.shape[2]
            known = (table >= 0) & (table < k.shape[0])
            exists = np.repeat(known, size, 1)[:, None, None]
            if k.shape[0]:
                k, v = (np.concatenate(list(np.moveaxis(x[np.where(known, table, 0)], 1, 0)), 2) for x in (k, v))
            else:
                k, v = (np.zeros((b, x.shape[1], table.shape[1] * size, x.shape[3]), x.dtype) for x in (k, v))
        hk, t = k.shape[1:3]
        start, count = (args[3][:, i].reshape(b, 1, 1, 1) for i in range(2))
        scores = np.matmul(q.reshape(b, hk, h // hk * s, d), np.swapaxes(k, 2, 3)).reshape(b, h, s, t)
        scores = scores * wide.type(self.scale)
        if self.softcap > 0:
            scores = wide.type(self.softcap) * np.tanh(scores / wide.type(self.softcap))
        position, key = start + np.arange(s)[:, None], np.arange(t)
        seen: np.ndarray = np.broadcast_to((key < count) & exists, (b, 1, s, t))
        if self.causal:
            seen = seen & (key <= position)
        if self.window > 0:
            seen = seen & (key > position - self.window)
        scores = np.where(seen, scores, -np.inf)
        sink = args[-1].astype(wide).reshape(h, 1, 1) if self.sink else wide.type(-np.inf)
        top = np.maximum(scores.max(3, keepdims=True, initial=-np.inf), sink)
        top = np.where(top == -np.inf, 0, top)
        weights = np.where(seen, np.exp(scores - top), 0)  # a hidden NaN key has no weight
        total = weights.sum(3, keepdims=True) + np.exp(sink - top)
        weights = (weights / np.where(total == 0, 1, total)).astype(wide, copy=False)
        used = np.where(
            np.asarray(seen.any((1, 2)))[:, None, :, None], v, 0
        )  # rows that no query sees may hold anything
        mixed = np.matmul(weights.reshape(b, hk, h // hk * s, t), used).reshape(b, h, s, v.shape[3])
        return mixed.astype(output.type.numpy, copy=False)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        b, h, s, d = inputs[0].max_lens
        t, e = inputs[2].max_lens[2:]
        return b * h * s * t * (2 * d + 2 * e + 5)
