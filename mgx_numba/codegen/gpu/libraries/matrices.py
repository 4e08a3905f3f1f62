"""Products of matrices, as one call of a library is told of them."""

from __future__ import annotations

from ....dataclass import dataclass

__all__ = ["Matrices", "Matrix"]


@dataclass(frozen=True)
class Matrix:
    """Rows whose elements follow one another, or of a ``turned`` one columns; ``pitch`` elements from one to the next,
    and ``plane`` from a matrix of the batch to the next one."""

    pitch: int
    plane: int = 0
    turned: bool = False


@dataclass(frozen=True)
class Matrices:
    """``out[rows, columns] = left[rows, depth] @ right[depth, columns] + added[rows, columns]``, ``batch`` times; where
    ``added`` is None there is nothing to add."""

    rows: int
    columns: int
    depth: int
    batch: int
    left: Matrix
    right: Matrix
    out: Matrix
    added: Matrix | None = None
