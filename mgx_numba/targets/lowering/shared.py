"""What the plans of one dynamic program have in common."""

from __future__ import annotations

from collections.abc import Callable

from ...dataclass import dataclass
from ...graph.program import Program
from ...graph.replay import Replay
from ...runtime.plan import HostStep, Plan
from .shared_weights import SharedWeights
from .solutions import Solutions

__all__ = ["Shared", "release"]


@dataclass(frozen=True)
class Shared:
    """Packed weights, passes that are replayed, and how problems were computed before. May be used from any thread."""

    weights: SharedWeights
    passes: Replay
    solutions: Solutions

    @classmethod
    def of(cls, program: Program, passes: Callable[[Program], None], traced: bool = False) -> Shared:
        """For the plans of a program, whose literals live as long as this; ``passes`` rewrites one in place, ``traced``
        is of `Solutions`."""
        return cls(SharedWeights(program), Replay(passes, program), Solutions(traced))


def release(optimized: Program, plan: Plan) -> None:
    """Free a program that a plan was made of, unless the plan has host steps, which run its operators."""
    if not any(isinstance(step, HostStep) for step in plan.steps):
        optimized.release()
