"""The performance report, the statistics in it and the measured limits."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from mgx_numba.driver.measure import Measurement, StepTime
from mgx_numba.driver.rebatch import Batch
from mgx_numba.driver.report import write_report
from mgx_numba.driver.timing import average, percentile
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
