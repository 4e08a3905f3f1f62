"""From starting Python to the first result: a compiled program that was saved, against ONNX Runtime from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.conftest import Cases, Settings
from bench.peers import OURS
from bench.replay import CLOCK, replay
from bench.start import PEER, Start, measure_start

ROUNDS = 7
_measured: dict[str, Start] = {}


@pytest.mark.benchmark(timer=CLOCK.read)
def test_start(benchmark: Any, model: str, engine: str, cases: Cases, settings: Settings, tmp_path: Path) -> None:
    if engine not in (OURS, PEER):
        pytest.skip(f"only {OURS} and {PEER} are started")
    case = cases(model)
    if model not in _measured:
        rounds = ROUNDS if settings.enabled else 1
        peer = PEER in settings.engines
        _measured[model] = measure_start(case, case.checked, settings.threads, tmp_path, rounds, peer)
    benchmark.group = f"{model}, from Python's start to the first result"
    replay(benchmark, _measured[model].seconds[engine])
