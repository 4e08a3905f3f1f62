"""Operands of a GEMM library call."""

from __future__ import annotations

from ....dataclass import dataclass


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix, or column-major if ``turned``: ``pitch`` elements between rows (columns), ``plane`` between
    matrices of the batch."""

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
