"""The tool that measures the regret of the cost model's choices."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.choices import main, measure, regret
from mgx_numba.codegen.cpu.host import EMULATED_TILES
from mgx_numba.codegen.tuning.files import read_records
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.errors import OptionError
from tests.tuning.support import HERE, record


def test_every_problem_is_measured_and_counted() -> None:
    problems = measure(["mlp", "unet"], 1, "tiny")
    assert {name for p in problems for name in p["models"]} == {"mlp", "unet"}
    for p in problems:
        assert p["count"] == sum(p["models"].values()) > 0
        assert 0 < p["best_seconds"] <= p["chosen_seconds"]
        assert p["chosen"] in p["seconds"] and p["best"] in p["seconds"]
    assert regret(problems) >= 0


def test_models_are_measured_in_bfloat16() -> None:
    (problem, *_) = measure(["mlp"], 1, "tiny", quantize="bf16")
    assert "bfloat16" in str(problem["problem"])


def test_files_of_several_lanes_are_shipped_one_after_the_other(tmp_path: Path) -> None:
    """Into one file of the family, where what older kernels took is replaced."""

    def ship(name: str, *records: TuningRecord, best: str = "gemm[rows=8]") -> list[TuningRecord]:
        problems = [
            {
                "operation": "dot", "problem": {"m": 1, "n": 1, "k": 1, "batch": [], "dtype": "float32"}, "models": {},
                "count": 0, "chosen": "gemm", "best": best, "chosen_seconds": 1.0, "best_seconds": 1.0,
                "estimate_seconds": {}, "seconds": {}, "best_record": r.to_json(),
            }
            for r in records
        ]  # fmt: skip
        path = tmp_path / name
        path.write_text(json.dumps({"threads": 2, "family": "sapphirerapids", "problems": problems}))
        assert main(["--read", str(path), "--ship", str(tmp_path)]) == 0
        return read_records(tmp_path / "sapphirerapids.json")

    assert ship("a.json", record(1), record(2, seconds=2.0)) == [record(1), record(2, seconds=2.0)]
    assert ship("b.json", record(3), record(2)) == [record(1), record(2), record(3)]
    revised = HERE.with_revisions({"gemm": 1})
    assert ship("c.json", record(1, fingerprint=revised)) == [record(2), record(3), record(1, fingerprint=revised)]
    assert len(ship("e.json", record(5), best="gemm_tiles[rows=8]")) == 3  # float32 in parts, which the choice was not
    emulated = dataclasses.replace(HERE, features=(*HERE.features, EMULATED_TILES))
    with pytest.raises(OptionError, match="of no machine"):
        ship("d.json", record(4, fingerprint=emulated))


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
