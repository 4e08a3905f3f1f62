"""What a machine can do at most, which times are held against."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together: 1e9 float32 operations, and 1e9 bytes read or written, a second."""

    gflops: float
    gbytes: float
    threads: int

    def best(self, other: Limits) -> Limits:
        """The higher of both measurements, rate by rate."""
        return Limits(max(self.gflops, other.gflops), max(self.gbytes, other.gbytes), self.threads)
