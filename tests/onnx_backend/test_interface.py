"""Functions of `mgx_numba.backend` that ONNX's own tests do not call."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba.backend as backend
from mgx_numba.errors import MgxError, OptionError, ParameterError

from ..values import normal

X = normal(2, 3)


def doubled(lens: list[int | str] | None, element_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """``y = x + w`` with w declared as an input that has a default."""
    infos = [helper.make_tensor_value_info(n, element_type, lens) for n in ("x", "w")]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", element_type, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("lens", [[2, 3], ["a", "b"], None])
@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_inputs_by_order_and_by_name(lens: list[int | str] | None, target: str) -> None:
    ready = backend.prepare(doubled(lens), "CPU", target=target, **({"num_threads": 1} if target == "cpu" else {}))
    for inputs in ([X, X], {"w": X, "x": X}):
        (y,) = ready.run(inputs)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, X + X)
    if lens != [2, 3]:
        np.testing.assert_array_equal(ready.run([X[0], X[0]] if lens is None else [X[:1], X[:1]])[0].ravel(), 2 * X[0])


def test_an_initializer_is_no_input() -> None:
    model = doubled([2, 3])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w"))
    np.testing.assert_array_equal(backend.run_model(model, X, target="ref")[0], X + 1)


def test_a_file(tmp_path: Path) -> None:
    onnx.save(doubled([2, 3]), tmp_path / "model.onnx")
    np.testing.assert_array_equal(backend.prepare(tmp_path / "model.onnx", target="ref").run([X, X])[0], X + X)


def test_one_operator() -> None:
    node = helper.make_node("Clip", ["x", "", "most"], ["y"])
    (y,) = backend.run_node(node, [X, np.float32(0.5)], target="ref")
    np.testing.assert_array_equal(y, np.minimum(X, 0.5))
    old = helper.make_node("Softmax", ["x"], ["y"])
    (y,) = backend.run_node(old, {"x": normal(2, 2, 2)}, target="ref", opset_version=11)
    np.testing.assert_allclose(y.reshape(2, 4).sum(axis=1), 1, rtol=1e-6)
    scaler = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=[2.0])
    np.testing.assert_array_equal(backend.run_node(scaler, [X], target="ref")[0], 2 * X)


def test_types_below_a_byte_keep_their_names() -> None:
    x = np.array([-8, 7, 3], ml_dtypes.int4)
    (y,) = backend.run_node(helper.make_node("Identity", ["x"], ["y"]), [x], target="ref")
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_what_does_not_fit_is_refused() -> None:
    ready = backend.prepare(doubled([2, 3]), target="ref")
    with pytest.raises(ParameterError, match="got 1 inputs, expected 2: x, w"):
        ready.run([X])
    with pytest.raises(ParameterError, match="inputs are x; expected x, w"):
        ready.run({"x": X})
    with pytest.raises(ParameterError, match="for parameter: w"):
        ready.run([X, X[:1]])
    with pytest.raises(OptionError, match="run knows no option 'threads'"):
        ready.run([X, X], threads=2)
    with pytest.raises(OptionError, match="device 'CUDA' is not supported"):
        backend.prepare(doubled([2, 3]), "CUDA")
    with pytest.raises(OptionError):
        backend.prepare(doubled([2, 3]), target="ref", unknown_option=1)
    with pytest.raises(MgxError, match="abacus"):
        backend.prepare(doubled([2, 3]), target="abacus")


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    assert not backend.supports_device("nonsense")
