"""Some of the random QDQ models of `quantized`, whose command runs thousands."""

from __future__ import annotations

import pytest

from .quantized import MOVING, ONE_SIDED, difference

SEEDS, FEWER_SEEDS, PARTS = 50, 20, 10
MOST_DIFFERING = 0.01
"""Accepted share of differing results: those with a quotient about midway between two steps."""


@pytest.mark.parametrize(("start", "seeds"), [(0, SEEDS), (MOVING, SEEDS), (ONE_SIDED, FEWER_SEEDS)])
@pytest.mark.parametrize("part", range(PARTS))
def test_results_are_within_one_step_of_onnx_runtimes(part: int, start: int, seeds: int) -> None:
    pytest.importorskip("onnxruntime")
    found = [difference(start + seed) for seed in range(part, seeds, PARTS)]
    assert all(d.first == min(d.steps, 1) for d in found), found
    assert sum(d.count for d in found) <= max(1, MOST_DIFFERING * sum(d.of for d in found))
