"""TensorFlow models in the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba
from mgx_numba.driver.main import main

from ..frontends.tf_support import Graph


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = Graph()
    graph.input("x", (-1, 4, 5, 2))
    graph.const("axes", np.array([1, 2], np.int32))
    graph.add("Relu", "relu", ["x"])
    graph.add("Mean", "mean", ["relu", "axes"])
    path = tmp_path / "model.pb"
    path.write_bytes(graph.proto.SerializeToString())
    return path


def drive(*words: Any) -> int:
    return main([str(word) for word in words])


def err(capsys: Any) -> str:
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, options",
    [
        ((), {}),
        (("--nchw", "--batch", "3"), {"is_nhwc": False, "batch_size": 3}),
        (("--nhwc", "--output-names", "relu"), {"output_names": ["relu"]}),
        (("--input-dim", "@x", "2", "2", "7", "5"), {"map_input_dims": {"x": [2, 2, 7, 5]}}),
    ],
)
def test_flags_are_the_options_of_parse_tf(flags: Any, options: Any, model: Path, capsys: Any) -> None:
    assert drive("read", model, *flags) == 0
    shown = capsys.readouterr()
    assert shown.out.rstrip("\n") == str(mgx_numba.parse_tf(model, **options)).rstrip("\n")
    assert "warning" not in shown.err


def test_a_file_of_another_name_and_a_folder(model: Path, tmp_path: Path, capsys: Any) -> None:
    other = model.rename(tmp_path / "frozen.graph")
    assert drive("params", "--tf", other) == 0
    assert "x" in capsys.readouterr().out
    (tmp_path / "saved").mkdir()
    other.rename(tmp_path / "saved" / "saved_model.pb")
    assert drive("params", tmp_path / "saved") == 0


def test_model_is_verified(model: Path, capsys: Any) -> None:
    assert drive("verify", model) == 0


def test_operators_are_listed(capsys: Any) -> None:
    assert drive("tf", "--list") == 0
    assert capsys.readouterr().out.split() == mgx_numba.get_tf_operators()
    assert drive("tf") == 2
    assert "tf needs --list" in err(capsys)


def test_errors_name_flags_and_idle_flags_are_told(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("read", model, "--output-names", "men") == 2
    assert (
        "error: --output-names has 'men', but the graph has no such node; did you mean mean?" in capsys.readouterr().err
    )
    assert drive("read", model, "--skip-unknown-operators") == 0
    assert "--skip-unknown-operators has no effect" in err(capsys)
    assert drive("read", model, "-o", tmp_path / "a.mxr") == 0
    assert drive("read", tmp_path / "a.mxr", "--nchw") == 0
    assert "--nchw has no effect" in err(capsys)
