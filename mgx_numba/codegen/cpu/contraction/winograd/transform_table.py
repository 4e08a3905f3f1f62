"""What the transforms of Winograd's filtering are told. Needs neither Numba nor llvmlite."""

from __future__ import annotations

from ...records import Record, Word

__all__ = ["INPUT_PLACE", "PAIRED", "SCALE", "SMALL_BITS"]

PAIRED = 16
"""Channels of a word of two parts lie so far apart: what one register holds of float32."""
SCALE = 2.0**64
"""What inputs are multiplied by that are all so small that their low parts would be denormals."""
SMALL_BITS = 0x20000000
"""Bits of 2**-63. Numbers are all below it if what they are united to is: their exponents have no more bits."""

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
"""Where a tile of the input lies."""
