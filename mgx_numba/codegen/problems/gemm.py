"""Matrix product problems. All strides are in elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.dim import Dim, Length, SharedLength, maximum
from ...core.integers import plain_ints
from ...dataclass import dataclass
from ...errors import ShapeError
from ...ops.block_layouts import layout_named
from .element_types import FLOAT32, ElementTypes, TypedProblem
from .epilogue import Prologue

CHUNK_CODES = 1 << 20
"""Codes of block-quantised weights that are packed at once: few enough that temporary arrays stay small, so many that
NumPy's calls cost little. One million took 1.3 ns a code on a Zen 3, 256,000 took 2, 64,000 took 4.5."""


@dataclass(frozen=True)
class BlockFormat:
    """Format of constant block-quantised weights of 4, 5, 6 or 8 bits: ``(code - zero point) * scale + offset``.

    Blocks are ``size`` successive k of a column. Without ``zero_points`` all zero points are ``middle``. There are no
    zero points beside ``offsets``. With ``int8_rows`` the left operand may be quantised to int8, block by block. With
    ``half_scales`` a target may store scales as float16 times a power of two per column. ``from_memory``: the weights
    come from DRAM, because a program reads more than the caches hold between two uses.
    """

    bits: int
    size: int
    zero_points: bool
    int8_rows: bool = False
    half_scales: bool = False
    from_memory: bool = False
    offsets: bool = False

    def __post_init__(self) -> None:
        least = 32 if self.bits == 5 else 16
        if self.bits not in (4, 5, 6, 8) or self.size < least or self.size & (self.size - 1):
            raise ShapeError(
                f"weights of {self.bits} bits in blocks of {self.size}; expected 4, 5, 6 or 8 bits, blocks of {least}, "
                f"{2 * least}, {4 * least}, ..."
            )
        if self.offsets and self.zero_points:
            raise ShapeError("weights in blocks have zero points or offsets, not both")

    @property
    def middle(self) -> int:
        """Return the default zero point: the middle code, or 0 with offsets."""
        return 0 if self.offsets else 1 << (self.bits - 1)

    def blocks(self, k: Length) -> SharedLength:
        """Return the blocks per column of k weights."""
        return -(-k // self.size)


class BlockWeights(NamedTuple):
    """Block-quantised weights in the layout of ONNX Runtime's MatMulNBits.

    ``codes``: bytes ``[n, blocks, size * bits / 8]``, first code in the low bits; ``scales``: float32 ``[n, blocks]``;
    ``zero_points``: uint8 ``[n, blocks]`` or None; ``offsets``: float32 ``[n, blocks]`` or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None
    offsets: np.ndarray | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that hold the weights."""
        return [array for array in self if array is not None]

    def columns(self, form: BlockFormat, first: int, last: int) -> Columns:
        """Return some columns."""
        codes, scales, points, offsets = (None if each is None else each[first:last] for each in self)
        assert codes is not None and scales is not None
        return Columns(codes, scales, points, offsets, paired=form.bits == 4)

    def scale_rows(self) -> np.ndarray:
        """Return all scales, float32 [n, blocks]."""
        return self.scales


class StoredBlocks(NamedTuple):
    """Block-quantised weights in a layout of `ops.block_layouts`.

    ``layout``: its name; ``parts``: bytes ``[n, bytes of a row]``, whose columns follow one another.
    """

    layout: str
    parts: tuple[np.ndarray, ...]

    @property
    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that hold the weights."""
        return list(self.parts)

    def columns(self, form: BlockFormat, first: int, last: int) -> Columns:
        """Return some columns."""
        codes, scales, offsets = layout_named(self.layout).decode(self._rows(first, last))
        return Columns(codes, scales, None, offsets)

    def scale_rows(self) -> np.ndarray:
        """Return all scales, float32 [n, blocks], followed by all offsets."""
        layout = layout_named(self.layout)
        both = [[values for values in layout.decode_scales(part) if values is not None] for part in self.parts]
        return np.concatenate([np.concatenate(each, 1) for each in both])

    def plain(self) -> BlockWeights:
        """Return the same weights without a layout, codes of more than 4 bits as bytes."""
        layout = layout_named(self.layout)
        codes, scales, offsets = layout.decode(np.concatenate(self.parts))
        if layout.bits == 4:
            codes = codes[..., ::2] | codes[..., 1::2] << 4
        plain = offsets is not None or layout.bits in (4, 8)
        points = None if plain else np.full(scales.shape, layout.zero_point, np.uint8)
        return BlockWeights(codes, scales, points, offsets)

    def _rows(self, first: int, last: int) -> np.ndarray:
        found, start = [], 0
        for part in self.parts:
            found.append(part[max(first - start, 0) : max(last - start, 0)])
            start += len(part)
        return np.concatenate(found)


class Columns(NamedTuple):
    """Columns of block-quantised weights.

    ``codes``: uint8 ``[n, blocks, size]``, one code a byte, or ``[n, blocks, size / 2]`` if two successive codes are
    ``paired`` in a byte, the first in its low half; ``scales`` and ``offsets``: float32 ``[n, blocks]``;
    ``zero_points``: uint8 ``[n, blocks]``.
    """

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None
    offsets: np.ndarray | None
    paired: bool = False


@dataclass(frozen=True)
class GemmProblem(TypedProblem):
    """``out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]``.

    ``batch`` may be empty; strides list one per batch axis, then the matrix's two (``out_strides``: batch axes and row;
    columns are contiguous). Batch strides may be 0. Defaults are contiguous.

    Attributes:
        b_constant: whether b is known, and packed, at compile time.
        fast_math: whether methods that change rounding, such as Strassen's, are allowed.
        prologue: applied to a.
        blocks: format of block-quantised b, one matrix for the whole batch; b's type is the dequantised one.
        low_parts: nonzero if a is float32 as two bfloat16 parts: the offset (elements) of low parts from high parts.
            ``a_strides`` count bfloat16 elements; rows are zero-padded to whole cache lines.

    Lengths and strides may be symbolic (`core.dim`).
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
            object.__setattr__(self, name, plain_ints(value))

    @functools.cached_property
    def symbolic(self) -> bool:
        """Return whether a length or a stride is symbolic."""
        operands = self.prologue.operands if self.prologue else ()
        own = (self.m, self.n, self.k, *self.batch, *self.a_strides, *self.b_strides, *self.out_strides, self.low_parts)
        return Dim in map(type, (*own, *(stride for operand in operands for stride in operand.batch_strides)))

    @property
    def batch_count(self) -> SharedLength:
        return math.prod(self.batch)

    @property
    def flops(self) -> SharedLength:
        return 2 * self.batch_count * self.m * self.n * self.k


def packed_strides(lens: Sequence[Length]) -> tuple[SharedLength, ...]:
    """Return row-major strides of ``lens``; an empty axis counts as length 1."""
    strides: list[SharedLength] = [1] * len(lens)
    lens = plain_ints(lens)
    for i in range(len(lens) - 2, -1, -1):
        strides[i] = strides[i + 1] * maximum(lens[i + 1], 1)
    return tuple(strides)
