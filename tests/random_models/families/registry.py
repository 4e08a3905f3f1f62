"""The steps that a generator can take, by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..builder import Builder

__all__ = ["STEPS", "Step", "step"]

Step = Callable[["Builder"], Any]
STEPS: list[Step] = []


def step(weight: int = 1) -> Callable[[Step], Step]:
    """Register a step that is taken so often, compared with the others."""

    def add(function: Step) -> Step:
        STEPS.extend([function] * weight)
        return function

    return add
