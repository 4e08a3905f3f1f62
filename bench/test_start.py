"""Time from starting Python to the first result: ours from a compiled file, the peers from the model's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.conftest import Cases, Settings
from bench.peers import OURS
from bench.replay import CLOCK, replay
from bench.start import Column, Start, columns, measure_start

ROUNDS = 7
_measured: dict[str, Start] = {}


@pytest.mark.benchmark(timer=CLOCK.read)
def test_start(benchmark: Any, model: str, engine: str, cases: Cases, settings: Settings, tmp_path: Path) -> None:
    case = cases(model)
    if model not in _measured:
        rounds = ROUNDS if settings.enabled else 1
        of = columns(["mxr"], ["filled"], [name for name in settings.engines if name != OURS])
        _measured[model] = measure_start(case, case.checked, settings.threads, tmp_path, rounds, of)
    column = Column(OURS, "mxr", "filled") if engine == OURS else Column(engine)
    if column not in _measured[model].costs:
        pytest.skip(_measured[model].failures[column])
    benchmark.group = f"{model}, from Python's start to the first result"
    replay(benchmark, [cost.seconds for cost in _measured[model].costs[column]])
