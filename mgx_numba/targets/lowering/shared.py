"""What the plans of one dynamic program have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...graph.program import Program
from .shared_weights import SharedWeights
from .solutions import Solutions

__all__ = ["Shared"]


@dataclass(frozen=True)
class Shared:
    """Packed weights, and how problems were computed before. May be used from any thread."""

    weights: SharedWeights
    solutions: Solutions = field(default_factory=Solutions)

    @classmethod
    def of(cls, program: Program) -> Shared:
        """For the plans of a program, whose literals live as long as this."""
        return cls(SharedWeights(program))
