"""From a thread's number to the elements that it works on, in the text of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...arguments import Arguments
from ...printer import CodeBuffer

__all__ = ["Axes", "contiguous_lanes"]


class Axes:
    """Dimensions that a flat number walks, the last one fastest, and where operands are at it.

    Lengths and strides are argument arguments; which strides are 0 or 1 is part of the text.
    """

    def __init__(
        self, arguments: Arguments, prefix: str, lens: Sequence[int], strides: Sequence[Sequence[int]], lanes: int = 1
    ) -> None:
        """``strides`` are each operand's, in elements, along these dimensions; the last one is counted in vectors of
        ``lanes`` elements, which follow one another where its stride is not 0."""
        self._divide = "idiv" if prod(lens) >> 32 else "idiv32"
        self.lens = [arguments.integer(f"{prefix}n{d}", n) if d else "" for d, n in enumerate(lens)]
        self.strides = [
            [
                str(s * lanes if d == len(own) - 1 else s) if s in (0, 1) else arguments.integer(f"{prefix}s{k}_{d}", s)
                for d, s in enumerate(own)
            ]
            for k, own in enumerate(strides)
        ]

    def split(self, buffer: CodeBuffer, number: str) -> list[str]:
        """Emit the indices along each dimension at a flat number."""
        indices: list[str] = []
        for length in reversed(self.lens[1:]):
            quotient = buffer.emit(f"{self._divide}({number}, {length})")
            indices.insert(0, buffer.emit(f"{number} - {quotient} * {length}"))
            number = quotient
        return [number, *indices] if self.lens else []

    def offset(self, operand: int, indices: Sequence[str]) -> str:
        """Expression of an operand's element offset at some indices; ``0`` where it does not move."""
        terms = []
        for index, stride in zip(indices, self.strides[operand]):
            if stride != "0":
                terms.append(index if stride == "1" else f"{index} * {stride}")
        return " + ".join(terms) or "0"


def contiguous_lanes(most: int, length: int, operands: Sequence[tuple[Sequence[int], int]]) -> int:
    """The most lanes, a power of two up to ``most``, of vectors that divide a last dimension of this length and lie at
    multiples of their own size in every operand.

    ``operands`` has each one's strides along all dimensions, and its offset in elements from a multiple of 64 bytes. A
    last stride of 0 fits any vector.
    """
    lanes = most
    while lanes > 1:
        if length % lanes == 0 and all(
            strides[-1] == 0 or (strides[-1] == 1 and offset % lanes == 0 and all(s % lanes == 0 for s in strides[:-1]))
            for strides, offset in operands
        ):
            return lanes
        lanes //= 2
    return 1
