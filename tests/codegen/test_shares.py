"""Division of symbolic lengths among candidates: a problem that no candidate can plan is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mgx_numba.codegen.alternatives import shares
from mgx_numba.codegen.launch import Solution
from mgx_numba.core.dim import Scope, less
from mgx_numba.errors import UnsupportedError


def test_a_problem_without_a_plan_is_refused() -> None:
    """Such a product had no launches, and a plan with uninitialised memory as its result."""
    length = Scope().symbol("n", 1, None, 4)

    def plan(name: str, given: Any) -> Solution:
        raise UnsupportedError(f"{name} does not compute {given}")

    with pytest.raises(UnsupportedError, match="none of few, general can be planned"):
        shares(
            (length,), ["few", "general"], {"few": less(length, 5)}, [({length: 4}, {"few": 1.0, "general": 2.0})], plan
        )
