"""Small ONNX models, and their results from the frontend and from ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.frontends.onnx import parse_onnx

from ..exact_integers import ExactSession, multiplies_bytes
from .onnx_cases import run_program

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """Declaration of an input with an array's type and lengths."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    outputs: Mapping[str, int],
    *,
    opset: int = 17,
    constants: Mapping[str, np.ndarray] | None = None,
    contrib: bool = False,
    **extra: Any,
) -> onnx.ModelProto:
    """A model of some nodes; outputs have a type and any lengths."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value_info(n, a) for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid("com.microsoft", 1)] * contrib
    model = helper.make_model(graph, opset_imports=imports, **extra)
    model.ir_version = min(model.ir_version, 10)
    return model


def single(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    *,
    opset: int = 17,
    constant: Sequence[int] = (),
    outputs: Sequence[int] = (FLOAT,),
    domain: str = "",
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node and its feeds; ``constant`` lists the inputs that are initializers."""
    names = [f"x{k}" if value is not None else "" for k, value in enumerate(inputs)]
    results = {f"y{k}": type for k, type in enumerate(outputs) if type}
    node = helper.make_node(
        op_type, names, [f"y{k}" if type else "" for k, type in enumerate(outputs)], domain=domain, **attributes
    )
    given = {n: v for n, v in zip(names, inputs, strict=True) if v is not None}
    fixed = {f"x{k}": given.pop(f"x{k}") for k in constant}
    model = make_model([node], given, results, opset=opset, constants=fixed, contrib=domain == "com.microsoft")
    return model, given


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    """Results by the frontend and the reference interpreter."""
    return run_program(parse_onnx(model, **options), dict(feeds))


def assert_like_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], tolerance: float = 1e-5, skip: Sequence[int] = ()
) -> None:
    """Results agree with ONNX Runtime's relative to their largest element; some outputs may be left out."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if multiplies_bytes(model):
        expected = ExactSession(model, options).run(feeds)
    else:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(None, dict(feeds))
    results = run(model, feeds)
    assert len(results) == len(expected)
    for position, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        if position in skip:
            continue
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(result, wanted)
        elif wanted.size:
            a, b = result.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(
                a, b, rtol=0, atol=tolerance * max(1e-6, np.abs(b[np.isfinite(b)]).max(initial=0))
            )


def ints(*values: int) -> np.ndarray:
    """An int64 vector."""
    return np.array(values, np.int64)
