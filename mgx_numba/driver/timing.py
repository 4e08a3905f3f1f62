"""Statistics of repeated measurements, as MIGraphX defines them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["average", "percentile"]


def average(values: Sequence[float]) -> float:
    """Mean of the middle half."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
