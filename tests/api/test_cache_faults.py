"""Whole processes whose cache folder has no room."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ..running import ROOT
from ..values import normal

PROGRAM = """
import sys, numpy as np, mgx_numba
net = mgx_numba.parse_onnx(sys.argv[1]).compile("cpu", num_threads=1)
np.save(sys.argv[3], np.asarray(net.run({"x": np.load(sys.argv[2])})[0]))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a product with constant weights, its input and its result; return the model's path."""
    x, w = normal(3, 8, seed=0), normal(8, 5, seed=1)
    np.save(tmp_path / "x.npy", x)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 5])],
        [numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(tmp_path / "y.npy", x @ w)
    return path


def check(model: Path, folder: Path, limit: int | None = None) -> None:
    """Run the model in a process with this cache folder that writes files up to ``limit`` bytes; compare the result."""
    if limit is not None:  # the result is small
        limits = limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    found = model.parent / "found.npy"
    found.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(model.parent / "x.npy"), str(found)],
        # Python's own files of compiled modules would be cut off, too, and taken for whole.
        env={**os.environ, "MGX_CACHE_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    np.testing.assert_allclose(np.load(found), np.load(model.parent / "y.npy"), 1e-5, 1e-5)


def test_files_of_the_cache_folder_cannot_be_written_to_their_end(model: Path) -> None:
    folder, limit = model.parent / "cache", 1 << 12
    for _ in range(2):
        check(model, folder, limit)
    assert all(path.stat().st_size <= limit for path in folder.rglob("*") if path.is_file())
    check(model, folder)  # nothing that was cut off is taken for whole
