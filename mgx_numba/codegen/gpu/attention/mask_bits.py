"""Masks of attention in bits: a kernel that packs them, and the same in NumPy for constants.

A thread of an attention kernel has two keys of every eight for each row of its tile. Of a mask in bytes it loads each
key by itself, of bits a tile's 64 to 128 keys of a row at once: 4 x 12 heads of 512 queries and keys of 64 features
with a mask for each batch take 31 us on an H200 with bytes.
"""

from __future__ import annotations

import numpy as np

from ....core.shape import row_major_strides
from ....core.types import Type
from ...launch import Launch
from ...problems.attention import MASK_WORDS
from ...problems.cluster import Tensor
from ..data.elements import ElementText

WORD = 32
"""Keys of a word."""


def words_of(keys: int) -> int:
    """Return the words of a row of a mask: a multiple of `MASK_WORDS`, with whole tiles of each count of words up to
    that, since kernels load tiles of keys whole."""
    needed = max(-(-keys // (WORD * count)) * count for count in range(1, MASK_WORDS + 1))
    return -(-needed // MASK_WORDS) * MASK_WORDS


def mask_bits_launch(mask: Tensor, origin: str = "") -> Launch:
    """Return the launch that packs a ``bool`` mask [..., keys]; operands ``mask`` and ``bits``, int32 [...,
    `words_of`]. Bits behind the last key are 0."""
    keys, step = mask.lens[-1], mask.strides[-1]
    lens = (*mask.lens[:-1], words_of(keys))
    bits = Tensor(Type.int32_type, lens, row_major_strides(lens))
    text = ElementText([("mask", mask), ("bits", bits)], lens, [(*mask.strides[:-1], WORD * step), bits.strides], 1)
    text.arguments.integers(keys=keys, step=step)
    text.begin()
    buffer = text.buffer
    buffer.line(f"base = {text.place(0)}", f"left = keys - {text.places[-1]} * {WORD}", "word = const_int32(0, 1)")
    for k in range(WORD):
        with buffer.block(f"if left > {k}:"):
            own = f"cast_int32(load(p_mask, base + {k} * step, 1))"
            buffer.line(f"word = bitwise_or(word, shift_left({own}, const_int32({k}, 1)))")
    text.store("word")
    return text.launch("mask_bits_kernel", origin, mask.footprint + bits.footprint)


def packed_bits(mask: np.ndarray) -> np.ndarray:
    """Return a ``bool`` mask [..., keys] as int32 [..., `words_of`]."""
    padded = np.zeros((*mask.shape[:-1], words_of(mask.shape[-1]) * WORD), np.bool_)
    padded[..., : mask.shape[-1]] = mask
    return np.packbits(padded, axis=-1, bitorder="little").view(np.dtype("<i4"))
