"""The performance report, the statistics in it and the measured limits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from mgx_numba.driver import measure
from mgx_numba.driver.batches import Batch
from mgx_numba.driver.measure import Measurement, Repeats, StepTime, average, percentile
from mgx_numba.driver.report import write_report
from mgx_numba.graph.program import Program
from mgx_numba.runtime.cpu.limits import measure_limits
from mgx_numba.runtime.limits import Limits
from mgx_numba.targets.base import Stage
from tests.driver.support import drive, small_model

NUMBER = r"-?[\d.]+(?:e[+-]\d+)?"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def test_average_is_the_mean_of_the_middle_half() -> None:
    assert average([5.0]) == 5
    assert average([100, 1, 2, 3]) == 2.5
    assert average([0, 0, 4, 4, 4, 6, 1000, 1000]) == 4.5


def test_percentiles_are_values_that_were_measured() -> None:
    values = list(range(1, 101))
    assert [percentile(values, p) for p in (0, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert percentile([3.0], 95) == 3


@pytest.mark.parametrize("flags", [[], ["--detailed"], ["--ref"], ["--dyn-input-dim", "@x", "[{min:1,max:8},6]"]])
def test_report_has_migraphx_form(model: Path, flags: list[str], capsys: Any) -> None:
    assert drive("perf", model, "-n", "4", "--batch", "2", *flags) == 0
    out = capsys.readouterr().out
    instructions, summary = out.split("\nSummary:\n")
    timed = [line for line in instructions.splitlines() if line.startswith("@") and "@return" not in line]
    assert timed
    main = instructions.split('module: "main"')[1].split("module:")[0].splitlines()
    for line in main:
        if " = " in line and "@return" not in line:
            assert re.search(rf"\}}: {NUMBER}ms, {NUMBER}%$", line), line
    groups = summary.split("\n\n")[0].splitlines()
    assert all(re.fullmatch(rf".+: {NUMBER}ms / \d+ = {NUMBER}ms, {NUMBER}%", g) for g in groups)
    spent = [float(re.search(rf": ({NUMBER})ms /", g)[1]) for g in groups]  # type: ignore[index]
    assert spent == sorted(spent, reverse=True)
    for pattern in (
        "Batch size: 2",
        rf"Rate: {NUMBER} inferences/sec",
        rf"Total time: {NUMBER}ms \(Min: {NUMBER}ms, Max: {NUMBER}ms, Mean: {NUMBER}ms, Median: {NUMBER}ms\)",
        rf"Percentiles \(90%, 95%, 99%\): \({NUMBER}ms, {NUMBER}ms, {NUMBER}ms\)",
        rf"Total instructions time: {NUMBER}ms",
        rf"Overhead time: {NUMBER}ms, {NUMBER}ms",
        r"Overhead: -?\d+%, -?\d+%",
    ):
        assert re.search(f"^{pattern}$", summary, re.MULTILINE), pattern
    assert ("GFLOP/s" in summary) == ("--ref" not in flags)


def test_times_of_instructions_add_up(model: Path, capsys: Any) -> None:
    assert drive("perf", model, "-n", "4") == 0
    out = capsys.readouterr().out
    shares = [float(s) for s in re.findall(rf"\}}: {NUMBER}ms, ({NUMBER})%$", out, re.MULTILINE)]
    assert math.isclose(sum(shares), 100, abs_tol=0.01)


def test_rates_above_their_limits_are_explained(capsys: Any) -> None:
    def report(flops: int, moved: int) -> str:
        step = StepTime("@1 = relu(x)", "cpu::relu", "", flops, moved, [1.0])
        write_report(Measurement([Stage(Program(), None)], [1.0], [step], [0.0], Limits(1.0, 1.0, 1)), Batch(1))
        return capsys.readouterr().out

    assert "above the limit" not in report(10**9, 10**9)
    assert "GFLOP/s above the limit: " in report(2 * 10**9, 10**9)
    assert "GB/s above the limit: " not in report(2 * 10**9, 10**9)
    assert "GB/s above the limit: " in report(10**9, 2 * 10**9)


def test_rates_are_held_against_the_limits_of_their_units(capsys: Any) -> None:
    steps = [StepTime("", name, "", 10**9, 0, [1.0], unit=unit) for name, unit in (("one", "AMX int8"), ("two", ""))]
    limits = Limits(2.0, 1.0, 1, units={"AMX int8": 10.0})
    write_report(Measurement([Stage(Program(), None)], [1.0], steps, [0.0], limits), Batch(1))
    lines = capsys.readouterr().out.splitlines()
    assert "  AMX int8: 10 GFLOP/s" in lines
    (one,), (two,) = (
        [line for line in lines if line.startswith(f"{name} ") and "%" in line] for name in ("one", "two")
    )
    assert "10.0%" in one and one.endswith("AMX int8")
    assert "50.0%" in two and "AMX" not in two


def test_iterations_must_be_positive(model: Path, capsys: Any) -> None:
    assert drive("perf", model, "-n", "0") == 2
    assert "--iterations is 0" in capsys.readouterr().err


def test_limits_are_plausible() -> None:
    one = measure_limits(1)
    assert one.threads == 1
    assert 0.5 < one.gflops < 1e4
    assert 0.1 < one.gbytes < 1e4
    assert one.best(Limits(1e9, 0.0, 1)) == Limits(1e9, one.gbytes, 1)
    assert one.units == {} and one.rate("AMX int8") == one.gflops
    best = Limits(1, 1, 1, units={"a": 1.0, "b": 3.0}).best(Limits(1, 1, 1, units={"a": 2.0}))
    assert best.units == {"a": 2.0, "b": 3.0}


def test_all_that_was_measured_as_json(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("perf", model, "-n", "3", "--warmup", "0", "--json", tmp_path / "perf.json") == 0
    found = json.loads((tmp_path / "perf.json").read_text())
    assert len(found["total"]) == 3 and min(found["total"]) > 0 and found["target"] == "cpu"
    assert found["steps"] and all(step["seconds"] >= 0 for step in found["steps"])
    assert drive("perf", model, "--json", tmp_path / "no" / "perf.json") == 2
    assert "there is no folder" in capsys.readouterr().err


def test_runs_go_on_for_a_duration_and_warm_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += 0.3

    assert len(Repeats(2, warmup=5).times(run, "Running")) == 2 and round(now[0] / 0.3) == 7
    seconds = Repeats(2, duration=1.0, warmup=0).times(run, "Running")
    assert len(seconds) == 4 and sum(seconds) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--duration", "-1"], "--duration is -1, expected seconds from 0 on"),
        (["--duration", "nan"], "--duration is nan, expected seconds from 0 on"),
        (["--warmup", "-1"], "--warmup is -1, expected a number from 0 on"),
    ],
)
def test_wrong_repeats(model: Path, flags: list[str], message: str, capsys: Any) -> None:
    for command in ("time", "perf", "roctx"):
        assert drive(command, model, *flags) == 2
        assert message in capsys.readouterr().err


def test_results_go_to_a_file_by_name(tmp_path: Path, capsys: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2,3] x) => (float[2,3] file, bfloat16[2,3] b, bool[2,3] c)
        { file = Neg(x)  b = Cast<to = 16>(x)  c = IsNaN(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 3], [0.1, np.nan, np.inf]]))
    words = ("--load-arg", "@x", tmp_path / "x.npy", "--output", tmp_path / "out.npz")
    assert drive("run", tmp_path / "m.onnx", *words) == 0
    assert capsys.readouterr().out == ""
    found, x = np.load(tmp_path / "out.npz"), np.load(tmp_path / "x.npy")
    np.testing.assert_array_equal(found["file"], -x)
    np.testing.assert_array_equal(found["b"], x.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(found["c"], np.isnan(x))
