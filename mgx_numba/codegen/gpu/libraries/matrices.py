"""Products of matrices, as one call of a library is told of them."""

from __future__ import annotations

from dataclasses import dataclass

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
    """``out[rows, columns] = left[rows, depth] @ right[depth, columns]``, ``batch`` times.

    Attributes:
        extras: of the epilogue's operands with an element for each result, by their numbers.
    """

    rows: int
    columns: int
    depth: int
    batch: int
    left: Matrix
    right: Matrix
    out: Matrix
    extras: tuple[tuple[int, Matrix], ...] = ()

    def written_to(self, out: Matrix) -> Matrices:
        """The same with its result elsewhere, and without an epilogue."""
        return Matrices(self.rows, self.columns, self.depth, self.batch, self.left, self.right, out)

    @property
    def whole(self) -> Matrix:
        """A result whose rows and matrices follow one another."""
        return Matrix(self.columns, self.rows * self.columns)
