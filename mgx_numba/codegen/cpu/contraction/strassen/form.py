"""Strassen's seven products, in words that a kernel can take apart.

Blocks of a matrix are numbered 0 to 3 by rows. A sum is the block that is added first, and perhaps one more with its
sign; a product goes to one or two blocks of the result in the same way. This is the form of the outer level; that of
the inner one, Winograd's, has fewer sums of results and is in the tiles.
"""

from __future__ import annotations

__all__ = ["FIRST", "LAST", "LEFT", "PRODUCTS", "RESULT", "RIGHT"]

Sum = tuple[tuple[int, int], ...]
"""Block and sign (1: subtracted) of each term."""

# By Strassen.
_LEFT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 0)), ((0, 0),), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (0, 1)), ((1, 0), (3, 1)),
)  # fmt: skip
# By Strassen.
_RIGHT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((0, 0),), ((1, 0), (3, 1)), ((2, 0), (0, 1)), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (3, 0)),
)  # fmt: skip
# By Strassen.
_RESULT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 1)), ((1, 0), (3, 0)), ((0, 0), (2, 0)), ((1, 0), (0, 1)), ((3, 0),), ((0, 0),),
)  # fmt: skip
PRODUCTS = len(_RESULT)


def _word(sums: tuple[Sum, ...]) -> int:
    """Six bits a product: first block (2), whether there is a second (1), that block (2), its sign (1)."""
    word = 0
    for r, ((block, _), *rest) in enumerate(sums):
        second, sign = rest[0] if rest else (0, 0)
        word |= (block | len(rest) << 2 | second << 3 | sign << 5) << (6 * r)
    return word


def _marks(products: range) -> int:
    """Four bits a product: the blocks of the result that no product before, in this order, goes to."""
    word, seen = 0, set()
    for r in products:
        for block, _ in _RESULT[r]:
            word |= (block not in seen) << (4 * r + block)
            seen.add(block)
    return word


LEFT, RIGHT, RESULT = _word(_LEFT), _word(_RIGHT), _word(_RESULT)
FIRST, LAST = _marks(range(PRODUCTS)), _marks(range(PRODUCTS - 1, -1, -1))
