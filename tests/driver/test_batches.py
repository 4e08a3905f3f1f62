"""``perf --batch-sizes``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mgx_numba.driver.batches import BatchTime, parse_sizes, write_batches
from mgx_numba.errors import OptionError
from tests.driver.support import drive, small_model


def test_every_size_is_timed_and_plotted(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    model, plot = small_model(tmp_path / "small.onnx"), tmp_path / "plot.png"
    assert drive("perf", model, "-n", "3", "--batch-sizes", "1,4,2,4", "--plot", plot) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["1", "4", "2"]
    assert lines[-1].startswith("Best batch size: ") and sum("100.0%" in line for line in lines) >= 1
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_best_size_has_the_highest_throughput(capsys: Any) -> None:
    write_batches([BatchTime(1, 0.01), BatchTime(2, 0.0125), BatchTime(4, 0.05)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["1", "10", "10", "100", "62.5%"]
    assert lines[2].split() == ["2", "12.5", "6.25", "160", "100.0%"]
    assert lines[-1] == "Best batch size: 2, 160 inferences/sec"


@pytest.mark.parametrize("text", ["", "0", "1,,2", "a", "-1", "1.5"])
def test_malformed_sizes_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--batch-sizes"):
        parse_sizes(text)


def test_models_of_fixed_batch_and_stray_flags_are_refused(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("perf", model, "--batch-sizes", "3", "--input-dim", "@x", "1", "6") == 2
    assert "no input has a leading dimension that is open (inputs: x [1, 6])" in capsys.readouterr().err
    assert drive("perf", model, "--plot", tmp_path / "a.png") == 2
    assert "--plot needs --batch-sizes" in capsys.readouterr().err
