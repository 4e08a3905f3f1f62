"""Results of a stage that the host completes before the next stage: they take their lengths from other results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.counted_elements import counted_elements, evenly_spaced
from ..dataclass import dataclass


@dataclass(frozen=True)
class Counted:
    """A result of the first stage whose memory has room for more elements than there are (`Operator.counted`).

    Attributes:
        number: the result's number.
        count: number of the result that holds the length.
        lens: the lengths, with -1 for the one that ``count`` gives.
    """

    number: int
    count: int
    lens: tuple[int, ...]

    def value(self, results: Sequence[Any]) -> np.ndarray:
        """Return the elements that there are."""
        return counted_elements(self.lens, results[self.number], results[self.count])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Spaced:
    """Evenly spaced numbers, of which the first stage computes start, limit and step: results ``number``, ``limit`` and
    ``delta``."""

    number: int
    limit: int
    delta: int

    def value(self, results: Sequence[Any]) -> np.ndarray:
        """Return the numbers, in an array of the class of the results.

        Raises:
            MgxError: see `EvenlySpaced`.
        """
        start = results[self.number]
        return evenly_spaced(start, results[self.limit], results[self.delta]).view(type(start))
