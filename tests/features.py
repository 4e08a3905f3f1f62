"""Tests that run once for each of several sets of a CPU's features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

__all__ = ["features"]


def features(forms: Sequence[str], autouse: bool = False) -> Callable[..., str]:
    """A fixture that sets ``MGX_CPU_FEATURES`` to each of these in turn, and whose value that is."""

    @pytest.fixture(params=forms, autouse=autouse)
    def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("MGX_CPU_FEATURES", request.param)
        return str(request.param)

    return form
