"""Strassen's seven products, encoded in words that a kernel can decode.

Blocks of a matrix are numbered 0 to 3 by rows. A sum is a first block, plus or minus an optional second block. A
product is added to one or two result blocks in the same way. This form is used at the outer level. The inner level, in
the tiles, uses Winograd's form, which has fewer result additions.
"""

from __future__ import annotations

Sum = tuple[tuple[int, int], ...]
"""Block and sign (1: subtracted) of each term."""

# Strassen's form.
_LEFT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 0)), ((0, 0),), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (0, 1)), ((1, 0), (3, 1)),
)  # fmt: skip
# Strassen's form.
_RIGHT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((0, 0),), ((1, 0), (3, 1)), ((2, 0), (0, 1)), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (3, 0)),
)  # fmt: skip
# Strassen's form.
_RESULT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 1)), ((1, 0), (3, 0)), ((0, 0), (2, 0)), ((1, 0), (0, 1)), ((3, 0),), ((0, 0),),
)  # fmt: skip
PRODUCTS = len(_RESULT)


def _word(sums: tuple[Sum, ...]) -> int:
    """Return the word of ``sums``, six bits a product: first block (2), whether there is a second block (1), second
    block (2), its sign (1)."""
    word = 0
    for r, ((block, _), *rest) in enumerate(sums):
        second, sign = rest[0] if rest else (0, 0)
        word |= (block | len(rest) << 2 | second << 3 | sign << 5) << (6 * r)
    return word


def _marks(products: range) -> int:
    """Return a word of four bits a product: the result blocks that no earlier product, in this order, is added to."""
    word, seen = 0, set()
    for r in products:
        for block, _ in _RESULT[r]:
            word |= (block not in seen) << (4 * r + block)
            seen.add(block)
    return word


LEFT, RIGHT, RESULT = _word(_LEFT), _word(_RIGHT), _word(_RESULT)
FIRST, LAST = _marks(range(PRODUCTS)), _marks(range(PRODUCTS - 1, -1, -1))
