"""Axes of length 0 in ONNX models, against ONNX Runtime; `empty_axes` tries all operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx

from ..random_models.oracle import runtime
from .empty_axes import REFUSED, differences
from .onnx_cases import node_cases, run_compiled, run_program
from .support import single

CASES = {
    "test_argmax_keepdims_example": "all 2", "test_concat_2d_axis_1": "all 2", "test_gather_1": "all 5",
    "test_gemm_default_no_bias": "all 10", "test_matmul_3d": "all 4", "test_reduce_sum_keepdims_example": "all 2",
    "test_softmax_axis_1": "all 4", "test_tfidfvectorizer_tf_batch_onlybigrams_skip0": "all 6",
    "test_where_example": "all 2",
}  # fmt: skip
"""Node tests, and the axes that become empty."""
PADS, WEIGHTS, TWICE = np.array([0, 1, 0, 0, 1, 0]), np.ones((4, 6), np.float32), np.array([1, 2, 1])


@pytest.mark.parametrize("name", sorted(CASES))
def test_operators_are_as_onnx_runtime_has_them(name: str) -> None:
    found = dict(differences(node_cases()[name], {CASES[name]}))
    assert len(found) == 2 and set(found.values()) <= {"", REFUSED}, found


def model(nodes: Sequence[NodeProto], lens: Sequence[int | str], results: str, **constants: np.ndarray) -> ModelProto:
    """Return a model of one input ``x``."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, lens)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def agrees(nodes: Sequence[NodeProto], lens: Sequence[int], results: str, **constants: np.ndarray) -> None:
    """Check the lengths and values of ref and cpu, of fixed lengths and of open ones."""
    feeds = {"x": np.zeros(lens, np.float32)}
    for declared in (lens, [f"n{k}" for k in range(len(lens))]):
        given = model(nodes, declared, results, **constants)
        wanted = runtime(given, feeds)
        for run in (run_program, run_compiled):
            for result, other in zip(run(parse_onnx(given), feeds), wanted, strict=True):
                np.testing.assert_array_equal(result, other)
                assert result.shape == other.shape


node = helper.make_node


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.filterwarnings("ignore:graph 'g'")
def test_flatten_of_two_empty_axes_copies_no_length(axis: int) -> None:
    agrees([node("Flatten", ["x"], ["a"], axis=axis), node("Neg", ["a"], ["y"])], [5, 0, 0], "y")


@pytest.mark.filterwarnings("ignore:graph 'g'")
def test_transpose_that_moves_an_axis_of_length_1_between_empty_ones() -> None:
    agrees([node("Transpose", ["x"], ["a"], perm=[0, 2, 1, 3]), node("Relu", ["a"], ["y"])], [4, 0, 1, 0], "y")


@pytest.mark.filterwarnings("ignore:graph 'g'")
def test_transpose_between_reshapes_that_split_an_empty_axis() -> None:
    dims = np.array([2, 3, 0, 1])
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[1, 0, 2]),
        node("Reshape", ["a", "dims"], ["b"], allowzero=1),
        node("Transpose", ["b"], ["c"], perm=[2, 0, 1, 3]),
        node("Flatten", ["c"], ["y"], axis=3),
    ]
    agrees(nodes, [33, 0, 1], "y", dims=dims)


@pytest.mark.parametrize("made", ["MatMul", "Relu"])
@pytest.mark.filterwarnings("ignore:graph 'g'")
def test_an_empty_result_whose_inside_another_step_writes(made: str) -> None:
    """NumPy refused the strides of an array without elements beyond the end of its memory."""
    first = node("MatMul", ["x", "weights"], ["m"]) if made == "MatMul" else node("Relu", ["x"], ["m"])
    nodes = [first, node("Pad", ["m", "pads"], ["a"]), node("Tile", ["a", "twice"], ["y"])]
    constants = {"weights": WEIGHTS} if made == "MatMul" else {}
    agrees(nodes, [0, 0, 4], "ya", pads=PADS, twice=TWICE, **constants)


@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.filterwarnings("ignore:graph 'g'")
def test_resize_leaves_an_empty_axis_empty(sizes: bool) -> None:
    """A detector's masks, of no detection."""
    given = {"n": np.array([0, 1, 6, 8])} if sizes else {"n": np.array([1, 1, 2, 2], np.float32)}
    for mode in ("nearest", "linear"):
        inputs = ["x", "", "", "n"] if sizes else ["x", "", "n"]
        agrees([node("Resize", inputs, ["y"], mode=mode)], [0, 1, 3, 4], "y", **given)


def test_limits_of_boxes_that_are_empty_are_refused() -> None:
    """``cpu`` read memory that belongs to no tensor; ``ref`` ended in NumPy's IndexError."""
    feeds = [np.zeros((1, 5, 4), np.float32), np.ones((1, 2, 5), np.float32), np.zeros(0, np.int64)]
    for constant in ((), (2,)):
        given, _ = single("NonMaxSuppression", feeds, outputs=(TensorProto.INT64,), constant=constant)
        with pytest.raises(ShapeError, match="input 2 .* expected one number"):
            parse_onnx(given, map_input_dims={"x2": [0]} if not constant else {})
