"""What a machine can do at most, which times are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together, or of a device: 1e9 operations, and 1e9 bytes read or written, a second.

    ``arithmetic`` says which operations these are, ``device`` where threads (0) do not count.
    """

    gflops: float
    gbytes: float
    threads: int
    arithmetic: str = "float32"
    device: str = ""

    @property
    def where(self) -> str:
        """Of what these are the limits."""
        return self.device or f"on {self.threads} threads"

    def best(self, other: Limits) -> Limits:
        """The higher of both measurements, rate by rate."""
        return replace(self, gflops=max(self.gflops, other.gflops), gbytes=max(self.gbytes, other.gbytes))
