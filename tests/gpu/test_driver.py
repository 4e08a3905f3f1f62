"""The command line with ``--gpu``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.codegen.gpu.driver.library import missing
from mgx_numba.driver.main import main
from mgx_numba.runtime.gpu import executor
from mgx_numba.runtime.limits import Limits
from mgx_numba.targets.gpu.limits import measure_limits
from mgx_numba.targets.gpu.target import TARGET

from ..interpreter.engine import interpreted
from .device_data import PLACES, place
from .programs import interpreter


@pytest.fixture
def model(tmp_path: Path) -> str:
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=1),
        helper.make_node("CumSum", ["s", "axis"], ["y"]),
        helper.make_node("Det", ["square"], ["d"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5])]
    inputs.append(helper.make_tensor_value_info("square", TensorProto.FLOAT, [3, 3]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yd"]
    axis = numpy_helper.from_array(np.array(1), "axis")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [axis])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


@pytest.mark.parametrize("where", PLACES)
def test_perf_and_verify_run_on_a_device(
    where: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "interpreter":
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
        monkeypatch.setattr(executor, "TIMED_REPEATS", 1)
    with place(where):
        assert main(["perf", "--gpu", "--iterations", "2", model]) == 0
        shown = capsys.readouterr().out
        assert "gpu::scan_kernel" in shown and "on the host: lowering: the target has no lowering rule" in shown
        assert ("GFLOP/s float32" in shown) == (where == "device")
        assert main(["verify", "--gpu", model]) == 0
        assert "verification passed successfully (gpu, comparison with ref)" in capsys.readouterr().out


@pytest.mark.skipif(not missing(), reason="there is a device")
def test_without_a_device_it_says_what_is_missing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--gpu", model]) != 0
    shown = capsys.readouterr()
    assert "target 'gpu' is not available here: NVIDIA's driver" in shown.out + shown.err


def test_the_interpreter_has_no_limits() -> None:
    with interpreted():
        assert TARGET.limits() is None
    assert measure_limits(interpreter(), copied=64, side=8) is None


@pytest.mark.gpu
def test_a_device_has_limits() -> None:
    found = TARGET.limits()
    assert isinstance(found, Limits) and found.gflops > 1e4 and found.gbytes > 100 and "of NVIDIA" in found.where
