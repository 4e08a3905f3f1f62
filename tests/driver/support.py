"""A small model, and a way to call the driver in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.driver.main import main


def small_model(path: Path) -> Path:
    """``y = softmax(relu(x * W + b))``, ``h = relu(...)`` in between; ``x`` is [N, 6] with a symbolic N."""
    rng = np.random.default_rng(5)
    w, b = (rng.standard_normal(s).astype(np.float32) for s in ((6, 4), (4,)))
    nodes = [
        helper.make_node("Gemm", ["x", "W", "b"], ["g"], "gemm"),
        helper.make_node("Relu", ["g"], ["h"], "relu"),
        helper.make_node("Softmax", ["h"], ["y"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(w, "W"), numpy_helper.from_array(b, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def scalar_model(path: Path) -> Path:
    """``y = s * s`` and ``z = sum(x) + s``, all but ``x`` [3] without axes; ``w`` is ``s`` with one axis."""
    nodes = [
        helper.make_node("Mul", ["s", "s"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Add", ["t", "s"], ["z"]),
        helper.make_node("Expand", ["s", "one"], ["w"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, lens) for n, lens in (("s", []), ("x", [3]))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yzw"]
    one = numpy_helper.from_array(np.array([1], np.int64), "one")
    graph = helper.make_graph(nodes, "scalars", inputs, outputs, [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def held_model(path: Path) -> Path:
    """Write a model with results ``t + "!"`` (strings), sequence ``s`` with ``x`` appended, and an unchanged
    optional."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3]))
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("StringConcat", ["t", "mark"], ["u"]),
        helper.make_node("SequenceInsert", ["s", "x"], ["r"]),
        helper.make_node("Identity", ["o"], ["p"]),
    ]
    inputs = [
        helper.make_tensor_value_info("t", TensorProto.STRING, [2]),
        helper.make_value_info("s", sequence),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_value_info("o", optional),
    ]
    outputs = [helper.make_tensor_value_info("u", TensorProto.STRING, None)]
    outputs += [helper.make_value_info("r", sequence), helper.make_value_info("p", optional)]
    mark = numpy_helper.from_array(np.array("!", object), "mark")
    graph = helper.make_graph(nodes, "held", inputs, outputs, [mark])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def drive(*arguments: object) -> int:
    """Exit status of the driver."""
    try:
        return main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)
