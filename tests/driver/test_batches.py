"""``perf --batch-sizes``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

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


def test_plot_without_sizes_is_refused(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("perf", model, "--plot", tmp_path / "a.png") == 2
    assert "--plot needs --batch-sizes" in capsys.readouterr().err


def graph(
    path: Path, nodes: list[Any], x: list[int], y: list[int], constants: dict[str, np.ndarray] | None = None
) -> Path:
    """A model file with input ``x`` and result ``y``."""
    kept = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, lens)] for n, lens in (("x", x), ("y", y))]
    made = helper.make_graph(nodes, "fixed", *ends, kept)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


LAYERS = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
LSTM = [helper.make_node("LSTM", ["x", "W", "R"], ["y"], hidden_size=4)]
LSTM_WEIGHTS = {"W": np.ones((1, 16, 6), np.float32), "R": np.ones((1, 16, 4), np.float32)}


@pytest.mark.parametrize("batch", [1, 32])
def test_models_of_fixed_batch_are_read_with_others(tmp_path: Path, batch: int, capsys: Any) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)}
    model = graph(tmp_path / "m.onnx", LAYERS, [batch, 3, 4], [batch, 5], weights)
    np.save(tmp_path / "x.npy", np.ones((batch, 3, 4), np.float32))
    assert drive("perf", model, "-n", "2", "--batch-sizes", "1,3,40", "--load-arg", "@x", tmp_path / "x.npy") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["1", "3", "40"]


def test_lengths_given_for_an_input_are_those_of_each_batch(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("perf", model, "-n", "2", "--batch-sizes", "1,3", "--input-dim", "@x", "2", "6") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


FIXED = {"s": np.array([1, -1]), "w": np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)}
RESHAPED = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
PACKED = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Unsqueeze", ["r", "a"], ["y"])]
MEAN = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)]
SWAPPED = [
    helper.make_node("Reshape", ["w", "s"], ["v"]),
    helper.make_node("Reshape", ["x", "s"], ["r"]),
    helper.make_node("Mul", ["r", "v"], ["y"]),
]


@pytest.mark.parametrize("nodes, result", [(RESHAPED, 5), (SWAPPED, 60)])
def test_constant_shapes_follow_the_batch(tmp_path: Path, nodes: list[Any], result: int, capsys: Any) -> None:
    lens = [1, 3, 4] if result == 5 else [1, 12, 5]
    model = graph(tmp_path / "m.onnx", nodes, lens, [1, result], FIXED)
    assert drive("perf", model, "-n", "2", "--batch-sizes", "1,3") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]] == ["1", "3"]


@pytest.mark.parametrize(
    "nodes, x, y, constants, message",
    [
        (PACKED, [1, 3, 4], [1, 3, 4], {"s": np.array([3, 4]), "a": np.array([0])}, "m.onnx: node #0 (Reshape, "),
        (MEAN, [1, 5], [1, 5], None, "result 0 is [1, 5], expected [2, 5] (it is [1, 5] for 1)"),
        ([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [4, 5], [4, 5], None, "depend on one another"),
        ([helper.make_node("Transpose", ["x"], ["y"])], [4, 5], [5, 4], None, "no leading length that inputs and"),
        (LSTM, [10, 2, 6], [10, 1, 2, 4], LSTM_WEIGHTS, "or it is not the batch (inputs: x [10, 2, 6])"),
    ],
)
def test_models_that_cannot_change_their_batch_are_refused(
    tmp_path: Path, nodes: list[Any], x: list[int], y: list[int], constants: Any, message: str, capsys: Any
) -> None:
    model = graph(tmp_path / "m.onnx", nodes, x, y, constants)
    assert drive("perf", model, "-n", "2", "--batch-sizes", "2") == 2
    assert message in capsys.readouterr().err


def test_sizes_out_of_range_and_other_files_are_refused_before_measuring(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("perf", model, "--dim-param", "@N", "{min:1,max:4}", "--batch-sizes", "2,9") == 2
    assert "no input takes a batch of 9 (inputs: x {dynamic, float_type, {[1..4], 6}})" in capsys.readouterr().err
    drive("read", model, "-o", tmp_path / "small.mxr")
    assert drive("perf", tmp_path / "small.mxr", "--batch-sizes", "2") == 2
    err = capsys.readouterr().err
    assert "small.mxr is no ONNX file, and no input has a leading dimension that is open (inputs: x [1, 6])" in err


@pytest.mark.parametrize(
    "nodes, x, y, constants, flags, expected",
    [
        (LAYERS, [32, 3, 4], [32, 5], {"w": FIXED["w"]}, [], "32 (the leading length of inputs and results)"),
        (LAYERS, [32, 3, 4], [32, 5], {"w": FIXED["w"]}, ["--batch", "32"], "32"),
        (LAYERS, [32, 3, 4], [32, 5], {"w": FIXED["w"]}, ["--batch", "7"], "32 (the leading"),
        (LSTM, [10, 2, 6], [10, 1, 2, 4], LSTM_WEIGHTS, [], "2 (that of the recurrent layers)"),
        ([helper.make_node("Transpose", ["x"], ["y"])], [4, 5], [5, 4], None, [], "1 (inputs and results have no"),
    ],
)
def test_rate_counts_the_inferences_of_a_batch(
    tmp_path: Path, nodes: Any, x: Any, y: Any, constants: Any, flags: list[str], expected: str, capsys: Any
) -> None:
    model = graph(tmp_path / "m.onnx", nodes, x, y, constants)
    assert drive("perf", model, "-n", "2", *flags) == 0
    out = capsys.readouterr().out
    found = re.search(r"^Batch size: ((\d+).*)\nRate: (\S+) inferences/sec\nTotal time: (\S+)ms", out, re.MULTILINE)
    assert found is not None
    assert found[1].startswith(expected)
    assert float(found[3]) == pytest.approx(int(found[2]) / float(found[4]) * 1e3, rel=1e-3)


def test_batch_of_a_dynamic_program_is_that_of_the_run(tmp_path: Path, capsys: Any) -> None:
    model = small_model(tmp_path / "small.onnx")
    assert drive("perf", model, "-n", "2", "--dim-param", "@N", "{min:3,max:8}") == 0
    assert "\nBatch size: 3 (the leading length" in capsys.readouterr().out
