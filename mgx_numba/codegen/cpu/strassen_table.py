"""What a tile of Strassen's product is told. Needs neither Numba nor llvmlite."""

from __future__ import annotations

__all__ = ["LEFT_PITCH", "MOST_TERMS", "STRASSEN_SLOTS", "TERM_COUNTS", "strassen_slot"]

MOST_TERMS = 4
"""Blocks in one sum, and targets of one product, at two levels."""
TERM_COUNTS = (0, 1, 2, 4)
"""Terms that a sum made on the side may have; 0 for no sum."""
LEFT_PITCH = 1040
"""Elements from one row of the left-hand side to the next, a constant so that one pointer serves all rows. No multiple
of a large power of two, which would put them into the same sets of the cache."""

STRASSEN_SLOTS = (
    "x",  # pointer: left-hand side, rows `LEFT_PITCH` apart
    "w",  # pointer: a panel
    "depth",
    "rows",  # selects the variant
    "terms",  # selects the variant: of the sum that is made on the side
    "targets",  # blocks of tile.columns contiguous columns that the product is added to
    *(f"target{t}" for t in range(MOST_TERMS)),  # pointers
    *(f"mode{t}" for t in range(MOST_TERMS)),  # 0: stored, 1: added, 2: subtracted
    "sum",  # pointer: where the sum goes
    "sum_row",  # elements from one row of the sum to the next
    "sum_rows",
    "sum_vectors",  # in a row; times sum_rows at most depth
    "source_row",  # elements from one row of a term to the next
    "ahead",  # how many elements ahead terms are brought near
    *(f"source{t}" for t in range(MOST_TERMS)),  # pointers: the terms
    *(f"sign{t}" for t in range(MOST_TERMS)),  # 1: subtracted
    "acc_panel",  # columns of a panel
    "touched",  # how many of the following two places to bring into the cache: none, one or both
    "written",  # pointer: where the result's first row for panel 0 will be stored
    "written_row",
    "read",  # pointer: first row, for panel 0, of what the epilogue reads
    "read_row",
)
"""Words of the argument block of a tile kernel."""


def strassen_slot(name: str) -> int:
    """Number of a word of the argument block."""
    return STRASSEN_SLOTS.index(name)
