"""Whole models on every engine, timed in turn with equal threads: one group of benchmarks for each model."""

from __future__ import annotations

from typing import Any

import pytest

from bench.conftest import Cases, Comparisons, Settings
from bench.peers import OURS
from bench.replay import CLOCK, replay


@pytest.mark.benchmark(timer=CLOCK.read)
def test_model(
    benchmark: Any, model: str, engine: str, cases: Cases, comparisons: Comparisons, settings: Settings
) -> None:
    comparison = comparisons(cases(model))
    if engine in comparison.failures:
        outcome = pytest.fail if engine == OURS else pytest.skip
        outcome(f"{engine}: {comparison.failures[engine]}")
    benchmark.group = f"{model}, {settings.threads} threads"
    benchmark.extra_info["setting"] = comparison.settings[engine]
    if engine == OURS:
        record = comparison.record()
        benchmark.extra_info.update({key: record[key] for key in ("fastest_peer", "ratio", "max_relative_error")})
    replay(benchmark, comparison.timings[engine].seconds.tolist())
