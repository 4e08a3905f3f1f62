"""Mutated files load or give the reason; ``python -m tests.fuzz_mxr`` tries many more."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from mgx_numba.graph.mxr import save_buffer, save_program
from tests.fuzz_mxr import fuzz
from tests.graph.test_mxr import convolution_program
from tests.mutation import trial
from tests.mutation.trial import Trial

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory as Linux tells it")


def test_mutated_files_load_or_say_why() -> None:
    seed = int(os.environ.get("MGX_FUZZ_SEED", time.time_ns() % 10**9))
    print(f"MGX_FUZZ_SEED={seed}")
    outcomes = fuzz(seed, 400)
    print(*outcomes.failures.values(), sep="\n")  # whole, as the assertion's text is not
    assert not outcomes.failures, outcomes.failures
    assert sum(outcomes.counts.values()) == 400 and outcomes.counts["loaded"] and outcomes.counts["refused"]


def test_trial_notices_memory_execution_and_other_exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").mkdir()
    data = save_buffer(convolution_program())
    checker = Trial(tmp_path / "examples", 0, tmp_path)
    assert checker.check(data, "msgpack") == "loaded"
    assert checker.check(data[:-1], "msgpack") == "refused"
    for found, load in (
        ("bytes of memory", lambda *_: bytearray(5 << 20)),
        ("executed: os.system", lambda *_: checker._audit("os.system", ("true",))),
        ("KeyError", lambda *_: {}["absent"]),
    ):
        monkeypatch.setattr(trial, "_parse", load)
        outcome = checker.check(data, "msgpack")
        assert outcome.startswith("failed") and found in outcome


def test_files_are_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    save_program(convolution_program(), tmp_path / "examples" / "a.msgpack")
    save_program(convolution_program(), tmp_path / "examples" / "b.json", "json")
    first, second = (Trial(tmp_path / "examples", 3, tmp_path) for _ in range(2))
    assert [first.mutated(i) for i in range(50)] == [second.mutated(i) for i in reversed(range(50))][::-1]
