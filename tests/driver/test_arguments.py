"""Positions of the model file and the flags' values on the command line, and files saved compiled."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba
from tests.driver.support import drive, small_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


@pytest.fixture
def saved(model: Path, tmp_path: Path) -> Path:
    """Compiled for one thread of the cpu target without fast_math."""
    program = mgx_numba.parse_onnx(model, default_dim_value=1).compile("cpu", fast_math=False, num_threads=1)
    program.save(tmp_path / "saved.mxr")
    return tmp_path / "saved.mxr"


@pytest.mark.parametrize(
    "before, after",
    [
        (["--input-dim", "@x", "5", "6"], []),
        (["--dim-param", "@N", "5"], []),
        (["--dyn-input-dim", "@x", "[5,6]"], []),
        (["--output-names", "h", "--dim-param", "@N", "5"], []),
        (["--output-names", "h"], ["--dim-param", "@N", "5"]),
        (["--apply-pass", "dead_code_elimination"], ["--batch", "5"]),
    ],
)
def test_lists_of_words_leave_the_model_file(model: Path, before: list[str], after: list[str], capsys: Any) -> None:
    for arguments in ([*before, model, *after], [model, *before, *after], [*before, *after, "--onnx", model]):
        assert drive("params", *arguments) == 0
        assert capsys.readouterr().out == "x: float_type, {5, 6}, {6, 1}\n"


@pytest.mark.parametrize("command", ["run", "time", "perf", "verify"])
def test_filled_parameters_leave_the_model_file(model: Path, tmp_path: Path, command: str, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 6), np.float32))
    count = ["-n", "1"] if command in ("time", "perf") else []
    assert drive(command, "--fill0", "x", model, *count) == 0
    assert drive(command, *count, "--load-arg", "@x", tmp_path / "x.npy", model) == 0
    assert drive(command, "--fill0", "x", "x", model, *count) == 0
    capsys.readouterr()
    assert drive(command, "--fill0", "x", "y", *count) == 2
    assert "error: a model file is needed (--fill0 takes x y)" in capsys.readouterr().err
    assert drive(command, "--load-arg", "@x", tmp_path / "x.npy") == 2
    assert "error: a model file is needed" in capsys.readouterr().err


def test_npy_files_of_types_without_a_name_in_numpy(tmp_path: Path, capsys: Any) -> None:
    x = np.arange(-7, 8).astype(ml_dtypes.int4)
    np.save(tmp_path / "x.npy", x)
    info = [helper.make_tensor_value_info("x", TensorProto.INT4, [15])]
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)
    graph = helper.make_graph([node], "g", info, [helper.make_tensor_value_info("y", TensorProto.INT32, [15])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]), tmp_path / "m.onnx")
    assert drive("run", tmp_path / "m.onnx", "--ref", "--load-arg", "@x", tmp_path / "x.npy") == 0
    assert drive("params", tmp_path / "m.onnx") == 0
    assert "x: int4_type, {15}, {1}" in capsys.readouterr().out


def test_saved_program_is_used_as_it_was_compiled(saved: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delenv("MGX_PLAN_CACHE")
    mgx_numba.load(saved)  # its plan is kept from here on

    def compile(self: Any, *args: Any, **options: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(mgx_numba.program, "compile", compile)
    for command in (["run"], ["perf", "-n", "1"], ["time", "-n", "1"], ["verify"], ["compile"]):
        assert drive(*command, "--migraphx", saved, "--enable-offload-copy") == 0
        assert "Compiled already: target cpu, fast_math=False" in capsys.readouterr().err
    assert drive("run", saved, "--cpu", "--disable-fast-math", "--num-threads", "1") == 0  # the same again


def test_flags_change_what_a_saved_program_was_compiled_with(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.mxr"
    assert drive("compile", saved, "--num-threads", "2", "-o", again) == 0
    loaded = mgx_numba.load(again)
    assert loaded.compile_options is not None
    assert (loaded.compile_options.num_threads, loaded.compile_options.fast_math) == (2, False)
    assert drive("compile", saved, "--ref", "-o", again) == 0
    loaded = mgx_numba.load(again)
    assert loaded.compile_target == mgx_numba.get_target("ref")
    assert loaded.compile_options is not None and not loaded.compile_options.fast_math


def test_part_of_a_saved_program_is_compiled_as_the_whole_was(saved: Path, tmp_path: Path, capsys: Any) -> None:
    part = tmp_path / "part.mxr"
    assert drive("compile", saved, "--trim", "2", "-o", part) == 0
    loaded = mgx_numba.load(part)
    assert loaded.compile_options is not None
    assert (loaded.compile_options.num_threads, loaded.compile_options.fast_math) == (1, False)
    assert "softmax" not in str(loaded.portable)
    assert drive("read", saved, "-p", "fuse_pointwise", "dead_code_elimination") == 0
    assert "pointwise(" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["compile"], ["tune"], ["perf", "--batch-sizes", "1", "--plot"]])
def test_unwritable_output_is_told_before_the_work(
    command: list[str], model: Path, tmp_path: Path, capsys: Any
) -> None:
    output = [] if "--plot" in command else ["-o"]
    assert drive(command[0], model, *command[1:], *output, tmp_path / "no" / "file") == 2
    out, err = capsys.readouterr()
    assert f"error: {tmp_path / 'no' / 'file'}: cannot be written: there is no folder {tmp_path / 'no'}\n" in err
    assert "Compilation time" not in err and not out


def test_missing_matplotlib_is_told_before_measuring(
    model: Path, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert drive("perf", model, "--batch-sizes", "1,2", "--plot", tmp_path / "a.png") == 2
    out, err = capsys.readouterr()
    assert "--plot needs matplotlib: install mgx_numba[report]" in err
    assert "Compilation time" not in err and not out
