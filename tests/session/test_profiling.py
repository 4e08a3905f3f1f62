"""Profiles of sessions have the form of ONNX Runtime's profiles."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mgx_numba.session
from mgx_numba.errors import FormatError

X = np.ones((3, 3), np.float32)


def model() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["m"], "product"),
        helper.make_node("Softmax", ["m"], ["s"], "soft"),
        helper.make_node("NonZero", ["s"], ["y"], "where"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "n"])],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def profiled(ort: Any, prefix: Path) -> Any:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return ort.InferenceSession(model(), options, providers=["CPUExecutionProvider"])


def test_profile_has_the_form_of_onnxruntimes(tmp_path: Path) -> None:
    events, found = {}, {}
    for ort in (onnxruntime, mgx_numba.session):
        session = profiled(ort, tmp_path / ort.__name__)
        found[ort] = [session.run(None, {"x": X})[0] for _ in range(2)]
        path = session.end_profiling()
        assert path.startswith(str(tmp_path / ort.__name__)) and path.endswith(".json")
        events[ort] = json.loads(Path(path).read_text())
        first, *lines, last = Path(path).read_text().splitlines()  # one event to a line
        assert first == "[" and last == "]" and all('"name"' in line and '"args"' in line for line in lines)
        assert session.run(None, {"x": X})[0].shape == (2, 9)  # not recorded
    np.testing.assert_array_equal(*found.values())
    theirs, mine = events.values()
    for wanted in theirs:
        assert all(wanted.keys() <= event.keys() for event in mine)
    for name in ("model_loading_array", "session_initialization", "model_run"):
        assert sum(e["name"] == name for e in mine) == sum(e["name"] == name for e in theirs)
    steps = [e for e in mine if e["cat"] == "Node"]
    assert steps and {"op_name", "provider", "node_index"} <= steps[0]["args"].keys()
    assert all(e["name"] == f"{e['args']['op_name']}_kernel_time" for e in steps)
    assert any("nonzero" in e["args"]["op_name"] for e in steps)
    runs = [e for e in mine if e["name"] == "model_run"]
    for step in steps:  # each lies in a run
        assert any(r["ts"] <= step["ts"] + 1 and step["ts"] + step["dur"] <= r["ts"] + r["dur"] + 1 for r in runs)


def test_profile_is_written_once_or_when_the_session_goes(tmp_path: Path) -> None:
    session = profiled(mgx_numba.session, tmp_path / "a")
    before = session.get_profiling_start_time_ns()
    assert 0 < before <= time.monotonic_ns()
    assert Path(session.end_profiling()).exists() and session.end_profiling() == ""
    session = profiled(mgx_numba.session, tmp_path / "b")
    session.run(None, {"x": X})
    session.set_providers(["CPUExecutionProvider"])  # another one begins
    assert len(list(tmp_path.glob("b*.json"))) == 1
    session.run(None, {"x": X})
    time.sleep(0.002)  # file names have milliseconds
    del session
    gc.collect()
    assert len(list(tmp_path.glob("b*.json"))) in (1, 2)


def test_session_without_a_profile() -> None:
    session = mgx_numba.session.InferenceSession(model())
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0


def test_profile_that_cannot_be_written(tmp_path: Path) -> None:
    session = profiled(mgx_numba.session, tmp_path / "no" / "a")
    with pytest.raises(FormatError, match="cannot be written"):
        session.end_profiling()
