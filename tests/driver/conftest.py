"""Commands measure the machine's limits before they judge a program; tests that do not read them use few runs."""

from __future__ import annotations

import pytest

from mgx_numba.runtime.cpu import limits


@pytest.fixture(autouse=True)
def _limits_of_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of the least number of runs, not of those of a time."""
    monkeypatch.setattr(limits, "_SECONDS", 0.0)
