"""Permutations of the eight 4-bit codes in each 32-bit word, code 0 in the lowest bits."""

from __future__ import annotations

import numpy as np


def alternated(words: np.ndarray) -> np.ndarray:
    """Return words uint32 whose codes 0 to 7 are codes 0, 4, 1, 5, 2, 6, 3, 7 of the given words."""
    return _exchanged_codes(_exchanged_bytes(words))


def even_before_odd(words: np.ndarray) -> np.ndarray:
    """Return words uint32 whose codes 0 to 7 are codes 0, 2, 4, 6, 1, 3, 5, 7 of the given words."""
    return _exchanged_bytes(_exchanged_codes(words))


def _exchanged_bytes(words: np.ndarray) -> np.ndarray:
    """Exchange bytes 1 and 2 of each word."""
    return words & 0xFF0000FF | (words & 0xFF00) << 8 | words >> 8 & 0xFF00


def _exchanged_codes(words: np.ndarray) -> np.ndarray:
    """Exchange codes 1 and 2 of each half of a word."""
    return words & 0xF00FF00F | (words & 0xF000F0) << 4 | words >> 4 & 0xF000F0
