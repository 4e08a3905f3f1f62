"""What the transforms of Winograd's filtering are told. Needs neither Numba nor llvmlite."""

from __future__ import annotations

from ...records import Record, Word

__all__ = ["INPUT_PLACE"]

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
    ),
)
"""Where a tile of the input lies."""
