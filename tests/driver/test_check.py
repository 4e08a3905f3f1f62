"""``read --check`` and ``--strict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tests.driver.support import drive, small_model


def changed(path: Path, **attributes: Any) -> Path:
    """The small model, with attributes for its ReLU, which has none, and integers for floats of its Gemm."""
    model = onnx.load(small_model(path))
    model.graph.node[0].attribute.append(helper.make_attribute("alpha", 1))
    model.graph.node[1].attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    onnx.save(model, path)
    return path


def test_check_lists_what_is_wrong_and_writes_nothing(tmp_path: Path, capsys: Any) -> None:
    model = changed(tmp_path / "m.onnx", gain=1)
    assert drive("read", "--check", model, "-o", tmp_path / "m.mxr") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "accepted"]
    assert "node relu (Relu, domain ai.onnx, opset 17): attribute 'gain' is unknown" in lines[0]
    assert "node gemm (Gemm, domain ai.onnx, opset 17): attribute 'alpha' is of kind int" in lines[1]
    assert not (tmp_path / "m.mxr").exists()


def test_check_succeeds_where_a_model_is_read(tmp_path: Path, capsys: Any) -> None:
    assert drive("read", "--check", changed(tmp_path / "m.onnx")) == 0
    assert capsys.readouterr().out.startswith("accepted: ")
    assert drive("read", "--check", small_model(tmp_path / "small.onnx")) == 0
    assert capsys.readouterr().out == "nothing is wrong with the model\n"
    assert drive("read", "--check", "--test") == 2
    assert "--check reads ONNX models" in capsys.readouterr().err


def test_strict_refuses_what_is_accepted_with_a_warning(tmp_path: Path, capsys: Any) -> None:
    model = changed(tmp_path / "m.onnx")
    assert drive("read", model) == 0
    assert "warning: node 'gemm' (Gemm" in capsys.readouterr().err
    assert drive("read", "--strict", model) == 2
    assert "attribute 'alpha' is of kind int" in capsys.readouterr().err
    assert drive("read", "--strict", "--check", model) == 1
    assert capsys.readouterr().out.startswith("error: ")
