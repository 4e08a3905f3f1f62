"""Attention problems."""

from __future__ import annotations

import math
import struct
from dataclasses import field, replace

from ...core.dim import equal, is_symbolic, known_equal, known_less, permitted
from ...dataclass import dataclass
from ...errors import ShapeError
from .element_types import ITEMSIZE
from .epilogue import Epilogue

FLOATS = ("float32", "float64", "float16", "bfloat16")


MASK_WORDS = 4
"""Words of 32 keys that a kernel may read at once; rows of masks in bits have a multiple of them."""


@dataclass(frozen=True)
class MaskLayout:
    """A mask [batch, heads, queries, keys]: ``bool`` keeps scores where true; the problem's dtype or float32 is added.

    ``strides`` are 0 along broadcast axes. With ``period`` masks, batch i uses mask ``i % period``; None: one per
    batch, or one for all. ``fill`` is the score of keys that a ``bool`` mask hides. With ``pairs`` the elements of each
    two neighbouring keys are aligned as one, and keys are even. With ``bits`` each 32 neighbouring keys of a ``bool``
    mask are the bits of an int32, the first key the lowest; strides count such words, and `MASK_WORDS` of them may be
    read from the word of each multiple of 32 keys.
    """

    dtype: str
    strides: tuple[int, ...]
    period: int | None = None
    fill: float = -math.inf
    pairs: bool = False
    bits: bool = False

    @property
    def replaces(self) -> bool:
        """Return whether hidden scores get a finite `fill`, which has a weight in rows without larger scores."""
        return self.dtype == "bool" and self.fill != -math.inf


@dataclass(frozen=True)
class AttentionProblem:
    """``softmax(scale * q @ k^T + mask) @ v``: q [batch, heads, queries, depth], k [batch, kv_heads, keys, depth], v
    [batch, kv_heads, keys, width], result [batch, heads, queries, width].

    Consecutive query heads share a key head. Strides are in elements, one per axis; ``width`` is contiguous in the
    result. With ``causal`` query i sees keys up to i + keys - queries. A query that sees no key gives zeros, or NaN
    with ``nan_rows``. Keys hidden by ``causal`` may be skipped: an infinity or NaN in them is ignored. With
    ``bfloat16_products`` the operands of both products may be rounded to bfloat16; with ``products_in_parts`` split
    into two bfloat16 each. Operands of the ``epilogue`` are scalars. With ``part_strides`` the result is also written
    as two bfloat16 parts, operands ``high`` and ``low``; with ``parts_alone`` only so.

    With ``limited`` the keys are rows of a cache, of which the int64 operand ``limits`` [batch, 2] has the position of
    the first query and the number of valid keys, and ``causal`` and ``window`` count positions (`ops.CachedAttention`).
    With ``one_position`` all queries of a head stand at the first query's position. Keys and values have ``kv_dtype``;
    "" is ``dtype``. A ``softcap`` above 0 limits scores. ``sink_strides`` are the strides of the operand ``sink``, a
    score for each head and query; () without.

    With ``page`` above 0 keys and values are blocks of ``page`` rows, ``pages`` for each batch, by the int64 operand
    ``table`` [batch, pages]; the first strides of keys and values go from block to block.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    depth: int
    width: int
    q_strides: tuple[int, ...]
    k_strides: tuple[int, ...]
    v_strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    causal: bool = False
    mask: MaskLayout | None = None
    fast_math: bool = False
    nan_rows: bool = False
    bfloat16_products: bool = False
    products_in_parts: bool = False
    epilogue: Epilogue = field(default_factory=Epilogue)
    part_strides: tuple[int, ...] = ()
    parts_alone: bool = False
    limited: bool = False
    one_position: bool = False
    window: int = 0
    softcap: float = 0.0
    kv_dtype: str = ""
    sink_strides: tuple[int, ...] = ()
    page: int = 0
    pages: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise ShapeError(f"attention of dtype {self.dtype}; expected one of {', '.join(FLOATS)}")
        if self.mask is not None and self.mask.dtype not in ("bool", "float32", self.dtype):
            raise ShapeError(f"attention mask of dtype {self.mask.dtype}; expected bool, float32 or {self.dtype}")
        alike = known_equal(self.heads, self.kv_heads)
        if known_less(self.kv_heads, 1) or not (alike or self.heads % self.kv_heads == 0):
            raise ShapeError(f"{self.kv_heads} key heads do not divide {self.heads} query heads")
        if any(known_less(n, 1) for n in (self.batch, self.queries, self.keys, self.depth, self.width)):
            raise ShapeError("attention over an empty tensor; expected at least 1 in each dimension")
        if any(operand.access != "scalar" for operand in self.epilogue.operands):
            raise ShapeError("an operand of attention's epilogue differs between elements; expected one number")
        if not known_equal(self.width, 1) and not known_equal(self.out_strides[3], 1):
            raise ShapeError(f"attention with features {self.out_strides[3]} elements apart in the result; expected 1")

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def out_dtype(self) -> str:
        """Return the dtype of the result."""
        return self.epilogue.out_dtype(self.dtype)

    @property
    def group(self) -> int:
        """Return the query heads per key head."""
        return 1 if known_equal(self.heads, self.kv_heads) else self.heads // self.kv_heads

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """Return the shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def features_contiguous(self) -> bool:
        """Return whether the features of a position are contiguous in q, k and v."""
        inner = [] if known_equal(self.depth, 1) else [self.q_strides[3], self.k_strides[3]]
        inner += [] if known_equal(self.width, 1) else [self.v_strides[3]]
        return all(known_equal(stride, 1) for stride in inner)

    @property
    def gathered(self) -> bool:
        """Return whether keys and values lie in blocks or are narrow, so that many queries read them from a copy."""
        return self.kv_dtype not in ("", self.dtype) or not known_equal(self.page, 0)

    @property
    def first_seen(self) -> int:
        """Return n such that query i sees keys up to i + n."""
        return self.keys - self.queries if self.causal else self.keys

    @property
    def flops(self) -> int:
        return self.batch * self.heads * self.queries * self.keys * (2 * self.depth + 2 * self.width + 5)

    @property
    def bytes(self) -> int:
        """Return the least memory traffic (bytes): each operand once."""
        rows = self.batch * self.heads * self.queries
        read = rows * self.depth + self.batch * self.kv_heads * self.keys * (self.depth + self.width)
        stored = ITEMSIZE[self.out_dtype] * (not self.parts_alone) + 2 * ITEMSIZE["bfloat16"] * bool(self.part_strides)
        cached = self.batch * self.kv_heads * self.keys * (self.depth + self.width)
        read = (read - cached) * self.itemsize + cached * ITEMSIZE[self.kv_dtype or self.dtype]
        return read + stored * rows * self.width

    def with_grouped_rows(self, several: bool = False) -> AttentionProblem:
        """Return the problem with the query heads of a group as rows of one head, if there is one query per head
        (grouped-query decode); with ``several`` also if the queries of all heads lie equally far apart and see the same
        keys, so that tiles of rows are full.

        A single query is the last position, so ``causal`` hides nothing.
        """
        if self.group == 1 or not (permitted(equal(self.queries, 1)) or (several and self._rows_of_groups())):
            return self
        alone = known_equal(self.queries, 1) or is_symbolic(self.queries)

        def grouped(strides: tuple[int, ...]) -> tuple[int, ...]:
            row = strides[1] if alone else strides[2]
            return (strides[0], strides[1] * self.group, row, strides[3])

        mask = self.mask
        return replace(
            self,
            heads=self.kv_heads, queries=self.group if alone else self.group * self.queries,
            causal=self.causal and self.limited,
            q_strides=grouped(self.q_strides),
            out_strides=grouped(self.out_strides), mask=mask and replace(mask, strides=grouped(mask.strides)),
            part_strides=self.part_strides and grouped(self.part_strides),
            one_position=self.limited,
            sink_strides=self.sink_strides and (self.sink_strides[0] * self.group, self.sink_strides[0]),
        )  # fmt: skip

    def _rows_of_groups(self) -> bool:
        """Return whether several queries of all heads of a group are rows with one stride, without order."""
        ordered = self.causal or self.limited or self.window or self.page or self.sink_strides or self.part_strides
        if ordered or any(is_symbolic(n) for n in (self.queries, self.group)):
            return False
        rows = [self.q_strides, self.out_strides, *([self.mask.strides] if self.mask is not None else [])]
        return all(known_equal(own[1], own[2] * self.queries) for own in rows)

    @property
    def scale_bits(self) -> int:
        """Return ``scale`` as an argument slot: the bits of a float64."""
        return float64_bits(self.scale)


def float64_bits(value: float) -> int:
    """Return the bits of a float64 as an argument slot holds them."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
