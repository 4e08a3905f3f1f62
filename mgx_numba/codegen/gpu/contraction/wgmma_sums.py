"""Sums of a warpgroup's tile as threads finish and store them: a few at a time, in vectors."""

from __future__ import annotations

from dataclasses import field

from ....dataclass import dataclass
from ...printer import VectorValue

__all__ = ["Part", "SumVector"]


@dataclass(frozen=True)
class SumVector:
    """Sums that a thread finishes and stores together.

    Attributes:
        half: which of the thread's two rows they are of.
        lane: of its neighbouring sums there, if a vector is one sum.
        row, column: of the first one in the result; the last ones there are beyond those.
        stored: whether they are part of the result.
        place: where they go.
        extras: what the epilogue reads there, by number of the operand.
    """

    half: int
    lane: int
    row: str
    column: str
    stored: str
    place: str
    extras: dict[int, VectorValue]


@dataclass
class Part:
    """Sums that each thread finishes together, of both of its rows.

    Attributes:
        piece: their number among the pieces of a row, see `sums_row`.
        first: the piece's first column in the tile.
        places: their vectors, once what the epilogue reads there is emitted.
    """

    piece: int
    first: int
    places: list[SumVector] = field(default_factory=list)
