"""What a machine can do at most, which times are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ..dataclass import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together, or of a device: 1e9 operations, and 1e9 bytes read or written, a second.

    ``arithmetic`` says which operations ``gflops`` are, ``device`` where threads (0) do not count. ``units`` has the
    rates of units with limits of their own, as `Backend.unit` calls them.
    """

    gflops: float
    gbytes: float
    threads: int
    arithmetic: str = "float32"
    device: str = ""
    units: Mapping[str, float] = field(default_factory=dict)

    def rate(self, unit: str) -> float:
        """1e9 operations a second of a unit; those of ``arithmetic`` for one without a limit of its own."""
        return self.units.get(unit, self.gflops)

    @property
    def where(self) -> str:
        """Of what these are the limits."""
        return self.device or f"on {self.threads} threads"

    def best(self, other: Limits) -> Limits:
        """The higher of both measurements, rate by rate."""
        units = {name: max(own, other.units.get(name, 0.0)) for name, own in self.units.items()}
        best = max(self.gflops, other.gflops), max(self.gbytes, other.gbytes)
        return replace(self, gflops=best[0], gbytes=best[1], units={**other.units, **units})
