"""Small models for the tests of clusters."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def classifier(batch: int | str = "n", channels: int = 8) -> onnx.ModelProto:
    """``image`` [batch, 3, 8, 8] to ``scores`` [batch, 5] and ``best`` [batch]."""
    rng = np.random.default_rng(channels)
    weights = {
        "w": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32),
        "d": rng.standard_normal((channels, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 5]),
            helper.make_tensor_value_info("best", TensorProto.INT64, [batch]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def elementwise(op: str, *lens: int | str) -> bytes:
    """``x`` of these lengths to ``y``, the result of an operator with one input."""
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, lens)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 3, 8, 8)).astype(np.float32)
