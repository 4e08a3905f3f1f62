"""Permutations of the eight 4-bit codes in each 32-bit word, code 0 in the lowest bits."""

from __future__ import annotations

import numpy as np

_CODES, _CODE_BITS = 0x00F000F0, 4
"""Code 1 of each half of a word, and the bits from it to code 2."""
_BYTES, _BYTE_BITS = 0x0000FF00, 8
"""Byte 1 of a word, and the bits from it to byte 2."""
ROOM = 2
"""Arrays that a permutation works in."""


def alternated(words: np.ndarray) -> np.ndarray:
    """Return words uint32 whose codes 0 to 7 are codes 0, 4, 1, 5, 2, 6, 3, 7 of the given words."""
    first, part = np.empty((ROOM, *words.shape), np.uint32)
    return _exchange(_exchange(words, _BYTES, _BYTE_BITS, first, part), _CODES, _CODE_BITS, first, part)


def even_before_odd(words: np.ndarray, room: np.ndarray | None = None) -> np.ndarray:
    """Return words uint32 whose codes 0 to 7 are codes 0, 2, 4, 6, 1, 3, 5, 7 of the given words.

    Args:
        room: memory of the result and of an intermediate one, uint32 ``[ROOM, *lengths of the words]``; None for new
            memory.
    """
    first, part = np.empty((ROOM, *words.shape), np.uint32) if room is None else room
    return _exchange(_exchange(words, _CODES, _CODE_BITS, first, part), _BYTES, _BYTE_BITS, first, part)


def _exchange(words: np.ndarray, low: int, bits: int, out: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Write words to ``out`` in which the bits of ``low`` are exchanged with those ``bits`` above them; ``out`` may be
    ``words``."""
    np.right_shift(words, bits, out=part)
    np.bitwise_xor(part, words, out=part)
    np.bitwise_and(part, low, out=part)  # the bits that differ
    np.bitwise_xor(words, part, out=out)
    np.left_shift(part, bits, out=part)
    return np.bitwise_xor(out, part, out=out)
