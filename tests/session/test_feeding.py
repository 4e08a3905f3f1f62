"""Lists as inputs: arrays of the input's element type, as ONNX Runtime makes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mgx_numba.session
from mgx_numba.errors import ParameterError

NUMBERS = [[1, 0], [3, 1]]


def identity(number: int, dims: Any = ("n", 2)) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", number, dims)],
        [helper.make_tensor_value_info("y", number, dims)],
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def given(ort: Any, number: int, value: Any, dims: Any = ("n", 2)) -> np.ndarray:
    session = ort.InferenceSession(identity(number, dims), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": value})[0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *((dtype, NUMBERS) for dtype in "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()),
        *((dtype, [[0.5, -2.0], [1e30, 4]]) for dtype in ("float32", "float64")),
        ("float32", NUMBERS),
        ("float32", [np.ones(2), np.zeros(2, np.float32)]),
        ("int32", [[1.7, -2.9]]),
        ("bool", [[True, False]]),
        ("int64", [[2**62, -(2**63)]]),
        ("uint64", [[2**64 - 1, 0]]),
    ],
)
def test_lists_become_arrays_of_the_inputs_type(dtype: str, value: Any) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    mine, theirs = (given(ort, number, value) for ort in (mgx_numba.session, onnxruntime))
    assert mine.dtype == theirs.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(mine, theirs)


def test_lists_of_what_numpy_lacks_and_of_text() -> None:
    found = given(mgx_numba.session, TensorProto.BFLOAT16, [[1.5, 2]])
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == [[1.5, 2.0]]
    found = given(mgx_numba.session, TensorProto.FLOAT16, [[0.1, 2]])
    assert found.tolist() == np.array([[0.1, 2]], np.float16).tolist()
    assert given(mgx_numba.session, TensorProto.STRING, [["a", "b"]]).tolist() == [["a", "b"]]
    assert given(mgx_numba.session, TensorProto.FLOAT, [], ("n",)).shape == (0,)
    assert given(mgx_numba.session, TensorProto.INT64, ((1, 2),)).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (TensorProto.FLOAT, [[1, 2], [3]], "the list is not an array"),
        (TensorProto.FLOAT, [["a", "b"]], "the list holds text, expected float32"),
        (TensorProto.INT8, [[300, 1]], "300 is out of range, expected int8"),
        (TensorProto.UINT32, [[-1, 1]], "-1 is out of range, expected uint32"),
        (TensorProto.INT32, [[float("nan"), 1.0]], "NaN to integer, expected int32"),
        (TensorProto.INT64, [[2**80, 1]], "beyond 64 bits"),
        (TensorProto.INT64, [[1e30, 1]], "is out of range, expected int64"),
        (TensorProto.UINT64, [[2**64 - 1, -1]], "-1 is out of range, expected uint64"),
        (TensorProto.FLOAT, [[None, 1]], "no numbers"),
        (TensorProto.FLOAT, [[1, 2, 3]], "should be"),
    ],
)
def test_lists_that_are_no_array_of_the_type(number: int, value: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        given(mgx_numba.session, number, value)


def test_lists_in_sequences_and_optionals() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(
        [
            helper.make_node("SequenceLength", ["s"], ["y"]),
            helper.make_node("SequenceAt", ["s", "one"], ["z"]),
            helper.make_node("OptionalGetElement", ["o"], ["w"]),
        ],
        "g",
        [
            helper.make_value_info("s", helper.make_sequence_type_proto(tensor)),
            helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        ],
        [helper.make_empty_tensor_value_info(name) for name in "yzw"],
        [helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )
    imports = [helper.make_opsetid("", 18)]
    source = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    session = mgx_numba.session.InferenceSession(source)
    inner = mgx_numba.session.OrtValue.ortvalue_from_numpy(np.array([5, 6], np.float32))
    found = session.run(None, {"s": [[1, 2, 3], [4], inner], "o": [7, 8]})
    assert [r.tolist() for r in found] == [3, [4.0], [7.0, 8.0]] and found[1].dtype == np.float32
    with pytest.raises(ParameterError, match=r"'s\[1\]': the list holds text"):
        session.run(None, {"s": [[1], ["a"]], "o": [7]})


def test_sparse_tensor_is_refused() -> None:
    ort = mgx_numba.session
    tensor = ort.SparseTensor.sparse_coo_from_numpy(
        [2, 2], np.ones(1, np.float32), np.array([1]), ort.OrtDevice.make("cpu", 0)
    )
    with pytest.raises(ParameterError, match="'x' is given as a sparse tensor"):
        given(ort, TensorProto.FLOAT, tensor)
