"""Peak resident memory of a fresh process that loads a model and runs it, every kernel in the object store."""

from __future__ import annotations

from typing import Any

import pytest

from bench.conftest import Cases, Processes, Settings
from bench.peers import OURS
from bench.replay import CLOCK, replay

ALLOWANCE = 100e6
"""Bytes that our process may need more than ONNX Runtime's."""


@pytest.mark.benchmark(timer=CLOCK.read)
def test_peak_memory(benchmark: Any, model: str, engine: str, cases: Cases, processes: Processes) -> None:
    """Report peak memory; the table shows gigabytes as seconds, megabytes as milliseconds."""
    found = processes.with_filled_store(cases(model), engine)
    benchmark.group = f"{model}, peak memory (1 s stands for 1 GB)"
    benchmark.extra_info["base_bytes"] = found[0].base_bytes
    replay(benchmark, [one.peak_bytes / 1e9 for one in found])


def test_peak_memory_is_near_that_of_onnxruntime(
    model: str, cases: Cases, processes: Processes, settings: Settings
) -> None:
    if not {OURS, "onnxruntime"} <= set(settings.engines):
        pytest.skip("onnxruntime is not measured")
    case = cases(model)
    ours, theirs = (
        min(one.peak_bytes for one in processes.with_filled_store(case, engine)) for engine in (OURS, "onnxruntime")
    )
    assert ours <= theirs + ALLOWANCE, f"{ours / 1e6:.0f} MB, onnxruntime {theirs / 1e6:.0f} MB"
