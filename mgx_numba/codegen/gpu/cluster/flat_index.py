"""Index arithmetic in kernel text: from a flat number to element offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

from ....core.dim import Dim, Length, all_of, equal, exact_quotient, known_equal, known_in, permitted
from ...arguments import Arguments
from ...printer import CodeBuffer


class Axes:
    """Axes that a flat number walks, the last one fastest, and the operands' strides along them.

    Lengths and strides are kernel arguments; which strides are 0 or 1 is part of the text.
    """

    def __init__(
        self,
        arguments: Arguments,
        prefix: str,
        lens: Sequence[Length],
        strides: Sequence[Sequence[Length]],
        lanes: int = 1,
    ) -> None:
        """Declare the arguments.

        Args:
            strides: of each operand along these axes, in elements.
            lanes: elements per vector of the last axis, which is counted in vectors.
        """
        self._lengths = tuple(lens)
        self.lens = [arguments.integer(f"{prefix}n{d}", n) if d else "" for d, n in enumerate(lens)]
        steps = [(*own[:-1], *(s * lanes for s in own[-1:])) for own in strides]
        self.strides = [
            [
                str(step) if known_in(s, 0, 1) else arguments.integer(f"{prefix}s{k}_{d}", step)
                for d, (s, step) in enumerate(zip(own, apart))
            ]
            for k, (own, apart) in enumerate(zip(strides, steps))
        ]

    @cached_property
    def _divide(self) -> str:
        """Return the division of flat numbers: 32-bit if the space is small enough. For symbolic lengths this is a
        guard; larger lengths get a kernel of their own."""
        return "idiv32" if prod(self._lengths) < 1 << 32 else "idiv"

    def split(self, buffer: CodeBuffer, number: str) -> list[str]:
        """Emit the index along each axis at a flat number."""
        indices: list[str] = []
        for length in reversed(self.lens[1:]):
            quotient = buffer.emit(f"{self._divide}({number}, {length})")
            indices.insert(0, buffer.emit(f"{number} - {quotient} * {length}"))
            number = quotient
        return [number, *indices] if self.lens else []

    def offset(self, operand: int, indices: Sequence[str]) -> str:
        """Return the expression of an operand's offset in elements; "0" if it does not move."""
        terms = []
        for index, stride in zip(indices, self.strides[operand]):
            if stride != "0":
                terms.append(index if stride == "1" else f"{index} * {stride}")
        return " + ".join(terms) or "0"


def contiguous_lanes(most: int, length: Length, operands: Sequence[tuple[Sequence[Length], Length]]) -> int:
    """Return the widest vector: the largest power of two up to ``most`` that divides the last axis and is aligned in
    every operand.

    Args:
        operands: of each, strides along all axes, and its offset in elements from 64-byte alignment. A last stride of 0
            fits any vector.

    For symbolic lengths at most one guard is recorded, for the widest vector that may fit.
    """
    return widest(most, lambda lanes: _whole_operands(lanes, length, operands))


def widest(most: int, fits: Callable[[int], Length]) -> int:
    """Return the largest power of two up to ``most`` for which ``fits`` holds, else 1.

    At most one guard is recorded, for the first undecided condition.
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
    """Return the condition that ``lanes`` divides all lengths; lengths that are multiples of other lengths are
    implied."""
    found: Length = 1
    symbolic = [n for n in lengths if isinstance(n, Dim)]
    for n in lengths:
        follows = isinstance(n, Dim) and any(m is not n and exact_quotient(n, m) is not None for m in symbolic)
        if not follows and not known_equal(found, 0):
            found = all_of(found, equal(n % lanes, 0))
    return found


def _whole_operands(lanes: int, length: Length, operands: Sequence[tuple[Sequence[Length], Length]]) -> Length:
    """Return the condition that vectors of ``lanes`` elements divide a length and are aligned in all operands."""
    found = whole_vectors(lanes, length)
    for strides, offset in operands:
        if known_in(strides[-1], 0):
            continue
        if not known_in(strides[-1], 1):
            return 0
        if not known_equal(found, 0):
            found = all_of(found, whole_vectors(lanes, offset, *strides[:-1]))
    return found
