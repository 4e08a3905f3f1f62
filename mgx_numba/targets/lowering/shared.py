"""What the plans of one dynamic program have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...graph.program import Program
from ...graph.replay import Replay
from .shared_weights import SharedWeights
from .solutions import Solutions

__all__ = ["Shared"]


@dataclass(frozen=True)
class Shared:
    """Packed weights, passes that are replayed, and how problems were computed before. May be used from any thread."""

    weights: SharedWeights
    passes: Replay
    solutions: Solutions = field(default_factory=Solutions)

    @classmethod
    def of(cls, program: Program, passes: Callable[[Program], None]) -> Shared:
        """For the plans of a program, whose literals live as long as this; ``passes`` rewrites one in place."""
        return cls(SharedWeights(program), Replay(passes, program))
