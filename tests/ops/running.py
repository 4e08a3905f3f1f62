"""Evaluation of one operator on arrays, with checks that hold for every operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.reference
import onnx.shape_inference
import onnxruntime

import mgx_numba.ops
from mgx_numba.core.argument import Argument
from mgx_numba.core.shape import Shape
from mgx_numba.ops.base import make_op

assert mgx_numba.ops.__all__


def shapes_of(*args: Any) -> list[Shape]:
    """Shapes of arrays (strides included), shapes as they are, tuples as tuple shapes."""
    result = []
    for a in args:
        if isinstance(a, Shape):
            result.append(a)
        elif isinstance(a, tuple):
            result.append(Shape.tuple(shapes_of(*a)))
        else:
            result.append(Argument.from_array(a).shape)
    return result


def shape(name: str, *args: Any, **attributes: Any) -> Shape:
    """Output shape of an operator for arrays or shapes."""
    return make_op(name, **attributes).compute_shape(shapes_of(*args))


def check(value: Any, expected: Shape) -> None:
    """The value has the type and lengths that the shape rule gives; ranges hold the actual lengths."""
    if expected.sub_shapes:
        assert isinstance(value, tuple)
        assert len(value) == len(expected.sub_shapes)
        for member, member_shape in zip(value, expected.sub_shapes):
            check(member, member_shape)
        return
    assert isinstance(value, np.ndarray)
    assert value.dtype == expected.type.numpy
    if expected.is_dynamic:
        assert value.ndim == expected.ndim
        assert all(d.min <= n <= d.max for n, d in zip(value.shape, expected.dims))
    else:
        assert value.shape == expected.lens


def call(name: str, *args: Any, **attributes: Any) -> Any:
    """Value of an operator; arrays without axes become one-element vectors, as arguments of a program do."""
    op = make_op(name, **attributes)
    values = [a if isinstance(a, tuple) else Argument.from_array(a).numpy() for a in args]
    shapes = shapes_of(*args)
    output = op.compute_shape(shapes)
    value = op.compute(output, values)
    check(value, output)
    normal = op.normalized(shapes)
    assert normal.compute_shape(shapes) == output
    assert normal.normalized(shapes) == normal
    again = normal.compute(output, values)
    for a, b in zip(value if isinstance(value, tuple) else (value,), again if isinstance(again, tuple) else (again,)):
        if not name.startswith("random"):
            np.testing.assert_array_equal(a, b)
    return value


def _model(op_type: str, inputs: Sequence[np.ndarray | None], opset: int, outputs: int, attributes: dict) -> Any:
    """Return a model of one ONNX operator, and the feeds of its inputs."""
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, **attributes)
    feeds = {n: a for n, a in zip(names, inputs) if a is not None}
    typed = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    untyped = [onnx.helper.make_value_info(n, onnx.TypeProto()) for n in results]
    graph = onnx.helper.make_graph([node], "g", typed, untyped)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8), feeds


def onnx_reference(op_type: str, *inputs: Any, opset: int = 18, outputs: int = 1, **attributes: Any) -> list:
    """Results of one ONNX operator by ONNX's own reference evaluator; ``None`` is a missing input."""
    model, feeds = _model(op_type, inputs, opset, outputs, attributes)
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def onnx_runtime(op_type: str, *inputs: Any, opset: int = 18, outputs: int = 1, **attributes: Any) -> list:
    """Results of one ONNX operator by ONNX Runtime; ``None`` is a missing input."""
    model, feeds = _model(op_type, inputs, opset, outputs, attributes)
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
