"""`bench.start` measures whole processes from their start to the first result."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import mgx_numba
from bench.environment import describe
from bench.peers import OURS
from bench.start import Column, measure_start
from bench.start_models import prepare_start
from bench.start_table import markdown

from ..caches import with_kernels


def test_processes_are_measured_in_turn(tmp_path: Path) -> None:
    case = prepare_start("trees", tmp_path, "tiny")
    mine, theirs = Column(OURS, "session", "filled"), Column("onnxruntime")
    with_kernels(tmp_path / "cache_session")
    found = measure_start(case, case.path, 1, tmp_path, 2, [mine, theirs])
    assert found.name == "trees"
    for column in (mine, theirs):
        rows, median = found.costs[column], found.median(column)
        assert len(rows) == 2
        assert 0 < median.seconds <= max(cost.seconds for cost in rows)
        assert 0 < median.cpu_seconds <= max(cost.cpu_seconds for cost in rows)
        assert median.megabytes > 10 or sys.platform != "linux"
    lines = markdown([found], [mine, theirs], describe(), 1, 2).splitlines()
    assert [line.count("|") for line in lines if line.startswith("|")] == [4] * 7


def test_a_process_that_fails_is_an_error_of_ours_and_a_note_of_a_peer(tmp_path: Path) -> None:
    case, absent = prepare_start("trees", tmp_path, "tiny"), tmp_path / "absent.onnx"
    peer = Column("onnxruntime")
    found = measure_start(case, absent, 1, tmp_path, 1, [peer])
    assert not found.costs
    assert "absent.onnx" in found.failures[peer]
    table = markdown([found], [peer], describe(), 1, 1)
    assert "| absent | failed |" in table and "absent, onnxruntime:" in table
    with pytest.raises(RuntimeError, match="(?s)session, filled: .*absent.onnx"):
        measure_start(case, absent, 1, tmp_path, 1, [Column(OURS, "session", "filled")])


@pytest.mark.parametrize("name", ["bert12", "decoder", "trees"])
def test_models_of_start_give_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = prepare_start(name, tmp_path, "tiny")
    session = onnxruntime.InferenceSession(case.path, providers=["CPUExecutionProvider"])
    found = mgx_numba.parse_onnx(str(case.path)).compile(mgx_numba.get_target("ref")).run(case.feeds)
    for mine, wanted in zip(found, session.run(None, case.feeds), strict=True):
        np.testing.assert_allclose(np.asarray(mine), wanted, rtol=1e-3, atol=1e-3)
    dims = onnx.load(case.path).graph.input[0].type.tensor_type.shape.dim
    assert any(dim.dim_param for dim in dims) is (name != "bert12")
