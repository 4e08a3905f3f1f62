"""Compile time with an empty and a filled object store, and time from starting Python to the first result."""

from __future__ import annotations

from typing import Any

import pytest

from bench.conftest import Cases, Processes
from bench.peers import OURS
from bench.replay import CLOCK, replay


@pytest.mark.benchmark(timer=CLOCK.read, group="compile, empty object store")
def test_compile_with_an_empty_object_store(benchmark: Any, model: str, cases: Cases, processes: Processes) -> None:
    found = processes.with_empty_store(cases(model))
    benchmark.extra_info.update(found.phases)
    replay(benchmark, [found.phases["compile"]])


@pytest.mark.benchmark(timer=CLOCK.read, group="compile, filled object store")
def test_compile_with_a_filled_object_store(benchmark: Any, model: str, cases: Cases, processes: Processes) -> None:
    found = processes.with_filled_store(cases(model), OURS)
    benchmark.extra_info.update(found[0].phases)
    replay(benchmark, [one.phases["compile"] for one in found])


@pytest.mark.benchmark(timer=CLOCK.read)
def test_first_result(benchmark: Any, model: str, engine: str, cases: Cases, processes: Processes) -> None:
    """Time the whole process: interpreter, imports, inputs, loading, three runs, exit."""
    found = processes.with_filled_store(cases(model), engine)
    benchmark.group = f"{model}, process"
    benchmark.extra_info.update(found[0].phases)
    replay(benchmark, [one.total_seconds for one in found])
