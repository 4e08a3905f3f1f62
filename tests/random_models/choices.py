"""Random choices from one source of integers, so that a seed or hypothesis determines everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeVar

__all__ = ["LENGTHS", "Choices"]

T = TypeVar("T")
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65)
"""Below, at and above the widths of vectors and register tiles."""


class Choices:
    """Choices by a function that gives an integer between two bounds, both included."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.integer = integer

    def chance(self, one_in: int) -> bool:
        return self.integer(1, one_in) == one_in

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def lens(
        self, ranks: tuple[int, int] = (1, 4), most: int = 3000, lengths: Sequence[int] = LENGTHS
    ) -> tuple[int, ...]:
        """Lengths of a tensor of at most so many elements, rarely none."""
        lens: list[int] = []
        for _ in range(self.integer(*ranks)):
            n = self.pick(lengths)
            lens.append(n if prod(lens) * n <= most else self.integer(1, 2))
        if lens and self.chance(40):
            lens[self.integer(0, len(lens) - 1)] = 0
        return tuple(lens)

    def permutation(self, rank: int) -> list[int]:
        rest = list(range(rank))
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in range(rank)]

    def subset(self, rank: int) -> list[int]:
        """Return random axes, at least one if there is any."""
        return [a for a in range(rank) if self.chance(2)] or ([self.integer(0, rank - 1)] if rank else [])
