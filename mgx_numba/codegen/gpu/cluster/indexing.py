"""From a thread's number to the elements that it works on, in the text of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

from ....core.dim import Dim, Length, all_of, equal, exact_quotient, known_equal, known_in, permitted
from ...arguments import Arguments
from ...printer import CodeBuffer

__all__ = ["Axes", "contiguous_lanes", "whole_vectors", "widest"]


class Axes:
    """Dimensions that a flat number walks, the last one fastest, and where operands are at it.

    Lengths and strides are argument arguments; which strides are 0 or 1 is part of the text.
    """

    def __init__(
        self,
        arguments: Arguments,
        prefix: str,
        lens: Sequence[Length],
        strides: Sequence[Sequence[Length]],
        lanes: int = 1,
    ) -> None:
        """``strides`` are each operand's, in elements, along these dimensions; the last one is counted in vectors of
        ``lanes`` elements, which follow one another where its stride is not 0."""
        self._lengths = tuple(lens)
        self.lens = [arguments.integer(f"{prefix}n{d}", n) if d else "" for d, n in enumerate(lens)]
        self.strides = [
            [
                str(s * lanes if d == len(own) - 1 else s)
                if known_in(s, 0, 1)
                else arguments.integer(f"{prefix}s{k}_{d}", s)
                for d, s in enumerate(own)
            ]
            for k, own in enumerate(strides)
        ]

    @cached_property
    def _divide(self) -> str:
        """The word for quotients of flat numbers. That 32 bits are enough for them is a question: plans for lengths
        for which they are not have kernels of their own."""
        return "idiv32" if prod(self._lengths) < 1 << 32 else "idiv"

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


def contiguous_lanes(most: int, length: Length, operands: Sequence[tuple[Sequence[Length], Length]]) -> int:
    """The most lanes, a power of two up to ``most``, of vectors that divide a last dimension of this length and lie at
    multiples of their own size in every operand.

    ``operands`` has each one's strides along all dimensions, and its offset in elements from a multiple of 64 bytes. A
    last stride of 0 fits any vector. Of symbolic lengths one question is asked at most, for the widest vectors that
    may fit.
    """
    return widest(most, lambda lanes: _whole_operands(lanes, length, operands))


def widest(most: int, fits: Callable[[int], Length]) -> int:
    """The most lanes, a power of two up to ``most``, for which a condition holds, else 1.

    One question is asked at most, of the first condition that is open.
    """
    lanes = most
    asked = False
    while lanes > 1:
        condition = fits(lanes)
        if isinstance(condition, int):
            if condition:
                return lanes
        elif not asked:
            asked = True
            if permitted(condition):
                return lanes
        lanes //= 2
    return 1


def whole_vectors(lanes: int, *lengths: Length) -> Length:
    """The condition that all lengths are multiples of so many lanes; of products of others among them that follows."""
    found: Length = 1
    symbolic = [n for n in lengths if isinstance(n, Dim)]
    for n in lengths:
        follows = isinstance(n, Dim) and any(m is not n and exact_quotient(n, m) is not None for m in symbolic)
        if not follows and not known_equal(found, 0):
            found = all_of(found, equal(n % lanes, 0))
    return found


def _whole_operands(lanes: int, length: Length, operands: Sequence[tuple[Sequence[Length], Length]]) -> Length:
    """The condition that vectors of so many lanes divide a length and lie at multiples of their size."""
    found = whole_vectors(lanes, length)
    for strides, offset in operands:
        if known_in(strides[-1], 0):
            continue
        if not known_in(strides[-1], 1):
            return 0
        if not known_equal(found, 0):
            found = all_of(found, whole_vectors(lanes, offset, *strides[:-1]))
    return found
