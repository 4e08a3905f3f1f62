"""Kernels planned for ONNX's node tests have no path that ends in a trap; `planned_kernels` compiles all."""

from __future__ import annotations

import pytest

from ..plans.models import node_programs
from .planned_kernels import planned, refused

EVERY = 150
"""Step between the node tests that are compiled; the test takes 3 s."""


def test_every_path_of_planned_kernels_ends_in_a_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    kernels = planned(node_programs(EVERY))
    assert len(kernels) > 10
    assert list(refused(kernels, "sm_90a")) == []
