"""What a tile of Strassen's product is told. Needs neither Numba nor llvmlite."""

from __future__ import annotations

__all__ = [
    "CHAIN_ENDS",
    "INNER",
    "LEFT_PITCH",
    "MOST_TARGETS",
    "PARKED_PRODUCTS",
    "SIDE_STEPS",
    "SIDE_WORDS",
    "STRASSEN_SLOTS",
    "strassen_slot",
]

INNER = 7
"""Products that one call computes, one after the other."""
CHAIN_ENDS = (4, 6, 7)
"""Products after which sums begin from zero again."""
PARKED_PRODUCTS = 3
"""The first of them, which leave their sums in ``parked``. Each further one completes a quadrant of the result."""
SIDE_STEPS = 2
"""Steps of a product's sum for each vector that it makes on the side, of a sum for products to come."""
MOST_TARGETS = 2
"""Blocks of the outer form that one of its products goes to."""
LEFT_PITCH = 1456
"""Elements from one row of a left-hand side to the next, a constant so that one pointer serves all rows. No multiple
of a large power of two, which would put them into the same sets of the cache."""

STRASSEN_SLOTS = (
    "x",  # pointer: left-hand sides, rows `LEFT_PITCH` apart
    *(f"left{u}" for u in range(INNER)),  # elements from x to the left-hand side of product u
    *(f"w{u}" for u in range(INNER)),  # pointers: panel of product u
    "depth",
    "rows",  # selects the variant
    "parked",  # pointer: room for `PARKED_PRODUCTS` tiles
    "targets",  # places that results are added to
    *(f"target{t}" for t in range(MOST_TARGETS)),  # pointers: tile.columns contiguous columns of quadrant (0, 0)
    *(f"mode{t}" for t in range(MOST_TARGETS)),  # 0: stored, 1: added, 2: subtracted
    *(f"quadrant{u}" for u in range(PARKED_PRODUCTS, INNER)),  # elements from there to the quadrant that u completes
    "jobs",  # how many products, from the first, make a sum on the side
    "side",  # pointer: `SIDE_WORDS` of those sums
    "touched",  # how many of the following two kinds of places to bring into the cache: none, one or both
    *(f"written{u}" for u in range(PARKED_PRODUCTS, INNER)),  # pointers: where the result's first row will be stored
    "written_row",
    *(f"read{u}" for u in range(PARKED_PRODUCTS, INNER)),  # pointers: first row of what the epilogue reads
    "read_row",
)
"""Words of the argument block of a tile kernel."""


SIDE_WORDS = (
    "made",  # pointers: made = first + second, each ``runs`` times ``vectors`` vectors
    "first",
    "second",
    "sign",  # 1: second is subtracted
    "vectors",  # at most ``depth`` / (`SIDE_STEPS` * runs)
    "runs",
    "made_pitch",  # elements from one run to the next
    "first_pitch",  # and to what is brought near, for one run
    "second_pitch",
)
"""Words of a sum on the side."""


def strassen_slot(name: str) -> int:
    """Number of a word of the argument block."""
    return STRASSEN_SLOTS.index(name)
