"""Peak rates of a machine, with which measured times are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ..dataclass import dataclass


@dataclass(frozen=True)
class Limits:
    """Peak rates of all threads together, or of a device: 1e9 operations a second, and 1e9 bytes read or written a
    second.

    ``arithmetic`` names the operations that ``gflops`` counts. ``device`` names a device, for which ``threads`` is 0.
    ``units`` has the rates of units with own limits, by `Backend.unit`.
    """

    gflops: float
    gbytes: float
    threads: int
    arithmetic: str = "float32"
    device: str = ""
    units: Mapping[str, float] = field(default_factory=dict)

    def rate(self, unit: str) -> float:
        """Return the rate of a unit in 1e9 operations a second; ``gflops`` for a unit without a limit of its own."""
        return self.units.get(unit, self.gflops)

    @property
    def where(self) -> str:
        """The device or the number of threads, for reports."""
        return self.device or f"on {self.threads} threads"

    def best(self, other: Limits) -> Limits:
        """Return the higher rate of both measurements for each limit."""
        units = {name: max(own, other.units.get(name, 0.0)) for name, own in self.units.items()}
        best = max(self.gflops, other.gflops), max(self.gbytes, other.gbytes)
        return replace(self, gflops=best[0], gbytes=best[1], units={**other.units, **units})
