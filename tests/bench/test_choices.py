"""The tool that measures what the cost model's choices lose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.choices import main, measure, regret


def test_every_problem_is_measured_and_counted() -> None:
    problems = measure(["mlp", "unet"], 1, "tiny")
    assert {name for p in problems for name in p["models"]} == {"mlp", "unet"}
    for p in problems:
        assert p["count"] == sum(p["models"].values()) > 0
        assert 0 < p["best_seconds"] <= p["chosen_seconds"]
        assert p["chosen"] in p["seconds"] and p["best"] in p["seconds"]
    assert regret(problems) >= 0


def test_regret_weighs_by_count() -> None:
    problems = [
        {"count": 3, "chosen_seconds": 2.0, "best_seconds": 1.0},
        {"count": 1, "chosen_seconds": 5.0, "best_seconds": 5.0},
    ]
    assert regret(problems) == pytest.approx(11 / 8 - 1)
    assert regret([]) == 0


def test_a_record_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"environment": {}, "threads": 1, "problems": measure(["mlp"], 1, "tiny")}
    path = tmp_path / "choices.json"
    path.write_text(json.dumps(record))
    assert main(["--read", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "Regret of the cost model, threads: 1" in printed and "mlp" in printed
