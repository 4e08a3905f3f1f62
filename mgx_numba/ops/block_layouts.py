"""Layouts of block-quantised weights in GGUF files, as ggml defines them.

A row of weights is a sequence of blocks of bytes. Each block has codes of a few bits, and scales in one or two levels.
`BlockLayout.decode` gives codes, scales and offsets; a weight is ``(code - zero_point) * scale + offset``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import ShapeError


class Decoded(NamedTuple):
    """Codes, scales and offsets of n columns.

    Attributes:
        codes: uint8 [n, blocks, block size], one code a byte.
        scales: float32 [n, blocks].
        offsets: float32 [n, blocks], added to each weight of a block; None if there are none.
    """

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None


class BlockLayout(NamedTuple):
    """A layout of blocks.

    Attributes:
        bits: bits of a code.
        size: codes that share a scale.
        stored: codes of a stored block, a multiple of ``size``.
        bytes: bytes of a stored block.
        zero_point: code of weight 0, before the offset is added.
        has_offsets: whether blocks have offsets.
        codes: returns uint8 [..., stored] of blocks uint8 [..., bytes].
        scales: returns float32 scales and offsets [..., stored / size] of blocks.
    """

    bits: int
    size: int
    stored: int
    bytes: int
    zero_point: int
    has_offsets: bool
    codes: Callable[[np.ndarray], np.ndarray]
    scales: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]

    def row_bytes(self, depth: int) -> int:
        """Return the bytes of a row of ``depth`` weights.

        Raises:
            ShapeError: the row has no whole number of blocks.
        """
        if depth % self.stored:
            raise ShapeError(f"a row of {depth} weights is not a whole number of blocks of {self.stored}")
        return depth // self.stored * self.bytes

    def depth(self, row_bytes: int) -> int:
        """Return the weights of a row of ``row_bytes`` bytes."""
        if row_bytes % self.bytes:
            raise ShapeError(f"a row of {row_bytes} bytes is not a whole number of blocks of {self.bytes} bytes")
        return row_bytes // self.bytes * self.stored

    def decode(self, rows: np.ndarray) -> Decoded:
        """Return the codes, scales and offsets of rows uint8 [n, bytes of a row]."""
        count = len(rows)
        codes = self.codes(self._blocks(rows)).reshape(count, -1, self.size)
        return Decoded(codes, *self.decode_scales(rows))

    def decode_scales(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the scales and offsets of rows uint8 [n, bytes of a row]."""
        count = len(rows)
        scales, offsets = self.scales(self._blocks(rows))
        return scales.reshape(count, -1), None if offsets is None else offsets.reshape(count, -1)

    def _blocks(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(rows), -1, self.bytes)

    def dequantize(self, rows: np.ndarray) -> np.ndarray:
        """Return the weights, float32 [n, depth]."""
        codes, scales, offsets = self.decode(rows)
        weights = (codes.astype(np.float32) - np.float32(self.zero_point)) * scales[..., None]
        if offsets is not None:
            weights += offsets[..., None]
        return weights.reshape(len(rows), -1)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 number at byte ``at`` of each block as float32 [..., 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _words(stored: np.ndarray) -> np.ndarray:
    """Return bytes [..., n] as words of eight, [..., n / 8]."""
    return np.ascontiguousarray(stored).view(np.uint64)


def _halves_of_bytes(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the low and the high halves of the bytes in words, each as a byte."""
    return words & 0x0F0F0F0F0F0F0F0F, words >> 4 & 0x0F0F0F0F0F0F0F0F


def _nibbles(stored: np.ndarray) -> np.ndarray:
    """Return the low halves of bytes [..., 16], then their high halves."""
    return np.concatenate(_halves_of_bytes(_words(stored)), -1).view(np.uint8)


def _high_bits(stored: np.ndarray) -> np.ndarray:
    """Return the bits of 4 bytes, the lowest first, as numbers 0 and 16."""
    return np.unpackbits(stored, axis=-1, bitorder="little") << 4


def _plain_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _halves(blocks, 0), None


def _scales_and_minima(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _halves(blocks, 0), _halves(blocks, 2)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the products of two float16 numbers with 8 scales and 8 minima of 6 bits, which 12 bytes hold."""
    packed = blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], -1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], -1)
    return _halves(blocks, 0) * scales, _halves(blocks, 2) * minima * np.float32(-1)


def _k_nibbles(stored: np.ndarray) -> np.ndarray:
    """Return 256 codes of 128 bytes as words: of each 32 bytes the low halves, then the high halves."""
    parts = _words(stored).reshape(*stored.shape[:-1], 4, 1, 4)
    return np.concatenate(_halves_of_bytes(parts), -2).reshape(*stored.shape[:-1], 32)


def _q5_k_codes(blocks: np.ndarray) -> np.ndarray:
    bits = _words(blocks[..., 16:48])[..., None, :] >> np.arange(8, dtype=np.uint64)[:, None] & 0x0101010101010101
    return (_k_nibbles(blocks[..., 48:]) | bits.reshape(*blocks.shape[:-1], 32) << 4).view(np.uint8)


def _q6_k_codes(blocks: np.ndarray) -> np.ndarray:
    outer = blocks.shape[:-1]
    low = np.concatenate(_halves_of_bytes(_words(blocks[..., :128]).reshape(*outer, 2, 1, 8)), -2)
    shifts = np.arange(0, 8, 2, dtype=np.uint64)[:, None]
    high = _words(blocks[..., 128:192]).reshape(*outer, 2, 1, 4) >> shifts & 0x0303030303030303
    return (low.reshape(*outer, 2, 4, 4) | high << 4).reshape(*outer, 32).view(np.uint8)


def _q6_k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _halves(blocks, 208) * blocks[..., 192:208].view(np.int8).astype(np.float32), None


LAYOUTS = {
    "q8_0": BlockLayout(8, 32, 32, 34, 128, False, lambda b: np.ascontiguousarray(b[..., 2:]) ^ 128, _plain_scales),
    "q4_0": BlockLayout(4, 32, 32, 18, 8, False, lambda b: _nibbles(b[..., 2:]), _plain_scales),
    "q4_1": BlockLayout(4, 32, 32, 20, 0, True, lambda b: _nibbles(b[..., 4:]), _scales_and_minima),
    "q5_0": BlockLayout(
        5, 32, 32, 22, 16, False, lambda b: _nibbles(b[..., 6:]) | _high_bits(b[..., 2:6]), _plain_scales
    ),
    "q5_1": BlockLayout(
        5, 32, 32, 24, 0, True, lambda b: _nibbles(b[..., 8:]) | _high_bits(b[..., 4:8]), _scales_and_minima
    ),
    "q4_k": BlockLayout(4, 32, 256, 144, 0, True, lambda b: _k_nibbles(b[..., 16:]).view(np.uint8), _k_scales),
    "q5_k": BlockLayout(5, 32, 256, 176, 0, True, _q5_k_codes, _k_scales),
    "q6_k": BlockLayout(6, 16, 256, 210, 32, False, _q6_k_codes, _q6_k_scales),
}
"""Layouts by name: ggml's, in lower case. Bytes and places are ggml's (``ggml-common.h``)."""


def layout_named(name: str) -> BlockLayout:
    """Return the layout of this name.

    Raises:
        ShapeError: there is none.
    """
    if name not in LAYOUTS:
        raise ShapeError(f"there is no layout {name!r} of block-quantised weights; known are {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
