"""Sessions on a GPU: values in device memory are read and written in place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba.session as ort
from mgx_numba.errors import ParameterError, UnsupportedError
from mgx_numba.runtime.gpu import transfers

from ..values import normal
from .device_data import PLACES, place

W = normal(4, 3, seed=1)


@pytest.fixture(params=PLACES, autouse=True)
def somewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    with place(request.param):
        yield


def session(lens: list[int | str], provider: str = "CUDAExecutionProvider") -> ort.InferenceSession:
    """``y = relu(x w)``, and ``total``, the sums of its rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axis"], ["total"], keepdims=0),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "total")]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, lens)
    constants = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.array([1]), "axis")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [given], outputs, constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 10
    options = {"fast_math": False}
    return ort.InferenceSession(model.SerializeToString(), providers=[(provider, options)])


def wanted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.maximum(x @ W, 0)
    return y, y.sum(1)


def test_values_of_a_device_are_what_was_put_there() -> None:
    x = normal(2, 3, seed=4)
    value = ort.OrtValue.ortvalue_from_numpy(x, "cuda")
    assert (value.device_name(), value.shape(), value.data_type()) == ("cuda", [2, 3], "tensor(float)")
    assert value.tensor_size_in_bytes() == x.nbytes and value.element_type() == TensorProto.FLOAT
    np.testing.assert_array_equal(value.numpy(), x)
    value.update_inplace(-x)
    np.testing.assert_array_equal(np.asarray(value), -x)
    with pytest.raises(ParameterError, match=r"float32 \[3\], expected float32 \[2, 3\]"):
        value.update_inplace(x[0])
    for lens in ((2, 0), ()):
        new = ort.OrtValue.ortvalue_from_shape_and_type(lens, np.int64, "cuda", 0)
        new.update_inplace(np.full(lens, 7, np.int64))
        assert new.numpy().shape == lens and (new.numpy() == 7).all()


@pytest.mark.parametrize("lens", [[2, 4], ["n", 4]])
def test_bound_memory_of_a_device_is_read_and_filled(lens: list[int | str], monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = session(lens), normal(2, 4)
    given = ort.OrtValue.ortvalue_from_numpy(x, "cuda")
    y = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cuda")
    total = ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda")
    binding = made.io_binding()
    binding.bind_input("x", "cuda", 0, np.float32, [2, 4], given.data_ptr())
    binding.bind_ortvalue_output("y", y)
    binding.bind_output("total", "cuda", 0, np.float32, [2], total.data_ptr())
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "to_host", None)  # nothing is copied to the host
        for _ in range(2):
            made.run_with_iobinding(binding)
    for value, expected in zip((y, total), wanted(x)):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
    given.update_inplace(2 * x)
    made.run_with_iobinding(binding)
    assert [v.device_name() for v in binding.get_outputs()] == ["cuda", "cuda"]
    for array, expected in zip(binding.copy_outputs_to_cpu(), wanted(2 * x)):
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)


def test_results_go_where_they_are_bound_to() -> None:
    made, x = session([2, 4]), normal(2, 4)
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("total")
    binding.bind_output("y", "cuda")
    made.run_with_iobinding(binding)
    total, y = binding.get_outputs()
    assert (total.device_name(), y.device_name()) == ("cpu", "cuda")
    for value, expected in zip((y, total), wanted(x)):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
    host = np.zeros((2, 3), np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, host.shape, host.ctypes.data)
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(-x, "cuda"))
    made.run_with_iobinding(binding)
    np.testing.assert_allclose(host, wanted(-x)[0], rtol=1e-5, atol=1e-6)
    (found,) = made.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(x, "cuda")})
    np.testing.assert_allclose(found.numpy(), wanted(x)[0], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_told() -> None:
    made, x = session([2, 4]), normal(2, 4)
    binding = made.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32, "cuda"))
    with pytest.raises(
        ParameterError, match=r"memory for result y: .*\{float_type, \{2, 4\}, .*\{float_type, \{2, 3\}"
    ):
        made.run_with_iobinding(binding)
    on_host = session([2, 4], "CPUExecutionProvider").io_binding()
    there = ort.OrtValue.ortvalue_from_numpy(x, "cuda")
    for bind in (
        lambda: on_host.bind_ortvalue_input("x", there),
        lambda: on_host.bind_ortvalue_output("y", there),
        lambda: on_host.bind_output("y", "cuda"),
    ):
        with pytest.raises(UnsupportedError, match="device 'cuda': the session runs on CPUExecutionProvider"):
            bind()
    with pytest.raises(UnsupportedError, match="device 'dml', expected 'cpu' or 'cuda'"):
        ort.OrtValue.ortvalue_from_numpy(x, "dml")


def test_initializer_that_a_run_overrides_and_a_profile_of_it(tmp_path: Path) -> None:
    declared = {"x": ["n", 4], "w": [4, 3]}
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, lens) for name, lens in declared.items()]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        given,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(W, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = ort.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    made = ort.InferenceSession(model.SerializeToString(), options, [("CUDAExecutionProvider", {"fast_math": False})])
    x = normal(2, 4, seed=2)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], x @ W, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made.run(None, {"x": x, "w": -W})[0], -(x @ W), rtol=1e-5, atol=1e-5)
    binding = made.io_binding()
    for name, value in (("x", x), ("w", W * 2)):
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    binding.bind_output("y", "cuda")
    made.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], x @ W * 2, rtol=1e-5, atol=1e-5)
    events = json.loads(Path(made.end_profiling()).read_text())
    assert any(e["cat"] == "Node" and e["args"]["provider"] == "CUDAExecutionProvider" for e in events)
    assert sum(e["name"] == "model_run" for e in events) == 2
