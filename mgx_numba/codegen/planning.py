"""Dispatch problems to the generators of a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UnsupportedError
from .launch import Launch, Solution

Planners = Mapping[type, Callable[[Any], "Launch | Solution"]]
"""The generator of each type of problem."""


def planned(planners: Planners, backend: str, problem: object) -> Solution:
    """Return the launches of a problem; see `Backend.plan`.

    Raises:
        UnsupportedError: the back end has no generator for the type of problem, or its generator refuses it.
    """
    generate = planners.get(type(problem))
    if generate is None:
        raise UnsupportedError(f"the back end {backend} has no kernels for {type(problem).__name__}")
    made = generate(problem)
    return Solution((made,)) if isinstance(made, Launch) else made
