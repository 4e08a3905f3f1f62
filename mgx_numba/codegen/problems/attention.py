"""What an attention kernel is asked to compute."""

from __future__ import annotations

import math
import struct
from dataclasses import field, replace

from ...core.dim import equal, known_equal, known_less, permitted
from ...dataclass import dataclass
from ...errors import ShapeError
from .element_types import ITEMSIZE
from .epilogue import Epilogue

__all__ = ["AttentionProblem", "MaskLayout", "float64_bits"]


FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class MaskLayout:
    """A mask [batch, heads, queries, keys]: ``bool`` keeps where true, the problem's dtype or float32 is added.

    ``strides`` are 0 where the mask is broadcast. There are ``period`` masks, after which those of further batches
    repeat; None: one for each batch, or all alike. ``fill`` is the score of keys that a ``bool`` mask does not keep.
    """

    dtype: str
    strides: tuple[int, ...]
    period: int | None = None
    fill: float = -math.inf

    @property
    def replaces(self) -> bool:
        """Whether scores are replaced by a finite `fill`, which has a weight in rows without larger scores."""
        return self.dtype == "bool" and self.fill != -math.inf


@dataclass(frozen=True)
class AttentionProblem:
    """``softmax(scale * q @ k^T + mask) @ v`` for q [batch, heads, queries, depth], k [batch, kv_heads, keys, depth]
    and v [batch, kv_heads, keys, width], written to [batch, heads, queries, width].

    Consecutive query heads share a key head. Strides are in elements, one for each dimension; ``width`` must be
    contiguous in the result. With ``causal`` query i sees the keys up to i + keys - queries. A query that sees
    no key gives zeros, or NaN with ``nan_rows``. Keys that ``causal`` hides may not be read at all: an infinity or NaN
    in them is ignored. With ``bfloat16_products`` the operands of both products may be rounded to bfloat16, with
    ``products_in_parts`` to two numbers of bfloat16 each. Operands of the ``epilogue``, which is computed of each
    result before it is stored, are one number each. With ``part_strides`` the result is written in two parts of
    bfloat16, too, operands ``high`` and ``low`` that lie so, or with ``parts_alone`` only so.
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
        """Dtype of the result."""
        return self.epilogue.out_dtype(self.dtype)

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return 1 if known_equal(self.heads, self.kv_heads) else self.heads // self.kv_heads

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """Lengths of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    @property
    def features_contiguous(self) -> bool:
        """Whether the features of one position lie together in q, k and v."""
        inner = [] if known_equal(self.depth, 1) else [self.q_strides[3], self.k_strides[3]]
        inner += [] if known_equal(self.width, 1) else [self.v_strides[3]]
        return all(known_equal(stride, 1) for stride in inner)

    @property
    def first_seen(self) -> int:
        """Query i sees the keys up to i plus this number."""
        return self.keys - self.queries if self.causal else self.keys

    @property
    def flops(self) -> int:
        return self.batch * self.heads * self.queries * self.keys * (2 * self.depth + 2 * self.width + 5)

    @property
    def bytes(self) -> int:
        """What has to be moved at least, each operand once."""
        rows = self.batch * self.heads * self.queries
        read = rows * self.depth + self.batch * self.kv_heads * self.keys * (self.depth + self.width)
        stored = ITEMSIZE[self.out_dtype] * (not self.parts_alone) + 2 * ITEMSIZE["bfloat16"] * bool(self.part_strides)
        return self.itemsize * read + stored * rows * self.width

    def with_grouped_rows(self) -> AttentionProblem:
        """The same problem with the query heads of a group as rows of one head, where there is one query a head.

        Its one query is the last position, from which ``causal`` hides nothing.
        """
        if self.group == 1 or not permitted(equal(self.queries, 1)):
            return self

        def grouped(strides: tuple[int, ...]) -> tuple[int, ...]:
            return (strides[0], strides[1] * self.group, strides[1], strides[3])

        mask = self.mask
        return replace(
            self,
            heads=self.kv_heads, queries=self.group, causal=False, q_strides=grouped(self.q_strides),
            out_strides=grouped(self.out_strides), mask=mask and replace(mask, strides=grouped(mask.strides)),
            part_strides=self.part_strides and grouped(self.part_strides),
        )  # fmt: skip

    @property
    def scale_bits(self) -> int:
        """``scale`` as an argument slot holds it: the bits of a float64."""
        return float64_bits(self.scale)


def float64_bits(value: float) -> int:
    """Return the bits of a float64 as an argument slot holds them."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
