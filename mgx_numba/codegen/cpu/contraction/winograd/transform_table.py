"""The argument records and constants of Winograd's transforms. Needs neither Numba nor llvmlite."""

from __future__ import annotations

from ...records import Record, Word

PAIRED = 16
"""Distance of the two channels in a word of two parts: the float32 elements of one register."""
SCALE = 2.0**64
"""Factor of inputs that are all so small that their low parts would be denormal."""
SMALL_BITS = 0x20000000
"""Bits of 2**-63. Numbers are all below it if the bitwise or of their bits is: their exponents have no further bits."""

INPUT_PLACE = Record(
    "input tile",
    (
        Word("start", "elements from the input to the tile's first pixel, which may lie before it"),
        Word("x_h", "elements from one row of pixels to the next"),
        Word("x_w", "elements from one pixel to the next"),
        Word("top", "first row of the tile that exists"),
        Word("bottom", "and the one after the last"),
        Word("left", "first column of the tile that exists"),
        Word("right", "and the one after the last"),
        Word("bits", "(parts) where all bits go that transformed values have, but for signs"),
    ),
)
"""The location of an input tile."""
