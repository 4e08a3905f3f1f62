"""Sequences, maps and optionals of a session, against ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba.session
from mgx_numba.errors import UnsupportedError

from .test_session import both

ONE = np.ones(2, np.float32)
TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
SEQUENCE = helper.make_sequence_type_proto(TENSOR)
MAP = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
FEED = {"a": ONE, "scores": np.array([[0.5, 2]], np.float32), "given": [ONE * 3, ONE * 4]}


def holders() -> bytes:
    """Sequences in and out, a sequence of maps, and an optional."""
    nodes = [
        helper.make_node("SequenceInsert", ["given", "a"], ["longer"]),
        helper.make_node("SequenceEmpty", [], ["empty"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[3, 4]),
        helper.make_node("Optional", ["a"], ["maybe"]),
        helper.make_node("ConcatFromSequence", ["longer"], ["joined"], axis=0),
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2]),
        helper.make_value_info("given", SEQUENCE),
    ]
    outputs = [
        helper.make_value_info("longer", SEQUENCE),
        helper.make_value_info("empty", SEQUENCE),
        helper.make_value_info("maps", helper.make_sequence_type_proto(MAP)),
        helper.make_value_info("maybe", helper.make_optional_type_proto(TENSOR)),
        helper.make_tensor_value_info("joined", TensorProto.FLOAT, ["n"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_values_that_hold_tensors() -> None:
    def code(ort: Any, session: Any) -> Any:
        every, chosen = session.run(None, FEED), session.run(["maps", "longer"], {**FEED, "given": []})
        return every, chosen, [(arg.name, arg.type) for arg in (*session.get_inputs(), *session.get_outputs())]

    both(holders(), code)


def test_dimensions_of_what_is_optional() -> None:
    both(holders(), lambda ort, session: [arg.shape for arg in (*session.get_inputs(), *session.get_outputs()[:4])])


@pytest.mark.parametrize("name", ["longer", "maps"])
def test_bindings_have_tensors_alone(name: str) -> None:
    session = mgx_numba.session.InferenceSession(holders())
    with pytest.raises(UnsupportedError, match=f"result '{name}' is no tensor"):
        session.run_with_ort_values([name], FEED)
    binding = session.io_binding()
    for key, value in FEED.items():
        binding.bind_cpu_input(key, value)
    binding.bind_output(name)
    with pytest.raises(UnsupportedError, match=f"result '{name}' is no tensor"):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output(name, mgx_numba.session.OrtValue.ortvalue_from_numpy(ONE))
    with pytest.raises(UnsupportedError, match=f"result '{name}' is no tensor"):
        session.run_with_iobinding(binding)
