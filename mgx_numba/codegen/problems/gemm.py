"""A matrix product, as a solver is asked for it. All strides are in elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.dim import Length, is_symbolic, maximum
from ...core.integers import plain_int
from ...dataclass import dataclass
from ...errors import ShapeError
from .element_types import FLOAT32, ITEMSIZE, ElementTypes
from .epilogue import Prologue

__all__ = ["BlockFormat", "BlockWeights", "GemmProblem", "packed_strides"]


@dataclass(frozen=True)
class BlockFormat:
    """Constant weights of 4 or 8 bits in blocks of ``size`` successive k of a column: ``(code - zero point) * scale``.

    Without ``zero_points`` all are ``middle``. With ``int8_rows`` what multiplies them may be brought to int8, block by
    block. With ``half_scales`` a target may keep scales as float16 times a power of two of their column. Weights come
    ``from_memory`` if so much else is read before the product is computed again that no cache keeps them.
    """

    bits: int
    size: int
    zero_points: bool
    int8_rows: bool = False
    half_scales: bool = False
    from_memory: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.size < 16 or self.size & (self.size - 1):
            raise ShapeError(
                f"weights of {self.bits} bits in blocks of {self.size}; expected 4 or 8 bits, blocks of 16, 32, 64, ..."
            )

    @property
    def middle(self) -> int:
        """Of the codes."""
        return 1 << (self.bits - 1)

    def blocks(self, k: Length) -> Any:
        """Blocks of a column of k weights."""
        return -(-k // self.size)


class BlockWeights(NamedTuple):
    """Weights in blocks, as ONNX Runtime's MatMulNBits has them.

    ``codes`` are bytes ``[n, blocks, size * bits / 8]``, the first code in the low bits, ``scales`` float32 ``[n,
    blocks]``, ``zero_points`` uint8 ``[n, blocks]`` or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None


@dataclass(frozen=True)
class GemmProblem:
    """``out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]``.

    ``batch`` may be empty; the strides name one element stride for each batch dimension, then the two of the matrix
    (``out_strides``: the batch dimensions and the row; its columns are contiguous). A batch stride may be 0.
    Defaults are those of contiguous operands. ``b_constant``: b is known at compile time and is packed then.
    ``fast_math`` allows methods that change rounding, such as Strassen's. A ``prologue`` is applied to a. With
    ``blocks`` b is stored in that format, one matrix for the whole batch; its type is that of what the codes stand for.
    With ``low_parts`` a is float32 in two parts of bfloat16, the low ones so many of their elements behind the high
    ones; ``a_strides`` are in these elements, and rows end with zeros up to whole lines of the cache. Lengths and
    strides may be symbolic (`core.dim`).
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    a_strides: tuple[int, ...] = ()
    b_strides: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()
    types: ElementTypes = FLOAT32
    b_constant: bool = True
    fast_math: bool = False
    prologue: Prologue | None = None
    blocks: BlockFormat | None = None
    low_parts: int = 0

    def __post_init__(self) -> None:
        rank = len(self.batch)
        for name, rows, columns, count in (
            ("a_strides", self.m, self.k, rank + 2),
            ("b_strides", self.k, self.n, rank + 2),
            ("out_strides", self.m, self.n, rank + 1),
        ):
            value = getattr(self, name) or packed_strides((*self.batch, rows, columns))[:count]
            if len(value) != count:
                raise ShapeError(f"{name} has {len(value)} entries; expected {count}")
            object.__setattr__(self, name, tuple(map(plain_int, value)))

    @functools.cached_property
    def symbolic(self) -> bool:
        """Whether a length or a stride is symbolic."""
        operands = self.prologue.operands if self.prologue else ()
        own = (self.m, self.n, self.k, *self.batch, *self.a_strides, *self.b_strides, *self.out_strides, self.low_parts)
        return any(map(is_symbolic, (*own, *(stride for operand in operands for stride in operand.batch_strides))))

    @property
    def batch_count(self) -> Any:
        return math.prod(self.batch)

    @property
    def flops(self) -> Any:
        return 2 * self.batch_count * self.m * self.n * self.k

    @property
    def dtype(self) -> str:
        """The one dtype of all sides (`ShapeError` if they differ)."""
        return self.types.single

    @property
    def itemsize(self) -> int:
        """Bytes of an element of that dtype."""
        return ITEMSIZE[self.dtype]


def packed_strides(lens: Sequence[Length]) -> tuple[Any, ...]:
    """Row-major strides of ``lens``, those of an empty axis as if it had length 1."""
    strides: list[Any] = [1] * len(lens)
    for i in range(len(lens) - 2, -1, -1):
        strides[i] = strides[i + 1] * maximum(plain_int(lens[i + 1]), 1)
    return tuple(strides)
