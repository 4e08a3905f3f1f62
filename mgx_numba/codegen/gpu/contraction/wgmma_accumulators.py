"""Accumulators of a warpgroup tile as the epilogue processes them: a few vectors at a time."""

from __future__ import annotations

from dataclasses import field

from ....dataclass import dataclass
from ...printer import VectorValue


@dataclass(frozen=True)
class SumVector:
    """Results that a thread computes and stores as one vector.

    Attributes:
        half: which of the thread's two rows.
        lane: index among neighbouring accumulators, if a vector is one element.
        row, column: position of the first element in the result; may exceed it.
        stored: condition that the vector is inside the result.
        place: its offset.
        extras: values of the epilogue's operands, by operand number.
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
    """Accumulators that a thread processes together, of both of its rows.

    Attributes:
        piece: index among the pieces of a row, see `sums_row`.
        first: first column of the piece in the tile.
        places: its vectors, once the loads of epilogue operands are emitted.
    """

    piece: int
    first: int
    places: list[SumVector] = field(default_factory=list)
