"""The argument records and constants of Strassen's tile. Needs neither Numba nor llvmlite."""

from __future__ import annotations

from ...records import Holds, Record, Word, pointer

INNER = 7
"""Products that one call computes, one after the other."""
CHAIN_ENDS = (4, 6, 7)
"""Products after which accumulators restart from zero."""
PARKED_PRODUCTS = 3
"""Number of first products whose accumulators go to ``parked``. Each later product completes a quadrant of the
result."""
SIDE_STEPS = 2
"""Steps of a product's reduction for each vector that it adds on the side for later products."""
MOST_TARGETS = 2
"""Most blocks of the outer form to which a product is added."""
LEFT_PITCH = 1456
"""Elements from one row of a left-hand side to the next, a constant so that one pointer serves all rows. It is no
multiple of a large power of two, which would map rows to the same cache sets."""

_FINISHED = INNER - PARKED_PRODUCTS

STRASSEN_BLOCK = Record(
    "Strassen's tile",
    (
        pointer("x", "left-hand sides, rows `LEFT_PITCH` apart"),
        Word("left", "elements from x to the left-hand side of each product", count=INNER),
        pointer("w", "panel of each product", count=INNER),
        Word("depth", "k of each product"),
        Word("rows", "selects the variant"),
        pointer("parked", "room for `PARKED_PRODUCTS` tiles"),
        Word("targets", "places that results are added to"),
        pointer("target", "tile.columns contiguous columns of quadrant (0, 0)", count=MOST_TARGETS),
        Word("mode", "of each target: 0 stored, 1 added, 2 subtracted", count=MOST_TARGETS),
        Word("quadrant", "elements from a target to the quadrant that each product not parked ends", count=_FINISHED),
        Word("jobs", "how many products, from the first, make a sum on the side"),
        Word("side", "a `SIDE_SUM` for each of them", Holds.WORDS),
        Word("touched", "how many of the two kinds of places below to bring into the cache: none, one or both"),
        pointer("written", "for each quadrant, where the result's first row will be stored", count=_FINISHED),
        Word("written_row", "elements from one row of the result to the next"),
        pointer("read", "for each quadrant, the first row of what the epilogue reads", count=_FINISHED),
        Word("read_row", "elements from one row of that to the next"),
    ),
)
"""The argument block of a tile kernel."""

SIDE_SUM = Record(
    "sum on the side",
    (
        pointer("made", "first + second, ``runs`` times ``vectors`` vectors"),
        pointer("first"),
        pointer("second"),
        Word("sign", "1: second is subtracted"),
        Word("vectors", "at most ``depth`` / (`SIDE_STEPS` * runs)"),
        Word("runs"),
        Word("made_pitch", "elements from one run to the next"),
        Word("first_pitch", "the same, and to what is brought near, for one run"),
        Word("second_pitch", "the same"),
    ),
)
"""A sum of two memory regions."""
SUM_PLACES = ("made", "first", "second")
"""The memory regions of a `SIDE_SUM`, each with a pitch."""
