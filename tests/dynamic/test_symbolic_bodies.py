"""Branches and loops with symbolic lengths: one executable of each body serves all lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.targets.cpu import bodies

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(3)
WEIGHTS = {name: RNG.standard_normal((8, 8)).astype(np.float32) / 3 for name in ("a", "b", "c")}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Executables of bodies that were made."""
    made: list[object] = []

    class Counted(bodies.Executable):
        def __init__(self, *args: object, **options: object) -> None:
            made.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(bodies, "Executable", Counted)
    return made


def compiled(nodes: list, inputs: Mapping[str, tuple], outputs: list[str]) -> mgx_numba.program:
    typed = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "g", typed, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    program = mgx_numba.parse_onnx_buffer(model.SerializeToString())
    program.compile(mgx_numba.get_target("cpu"))
    return program


def branch(name: str, weight: str) -> object:
    nodes = [
        helper.make_node("MatMul", ["x", weight], [f"{name}m"]),
        helper.make_node("Relu", [f"{name}m"], [f"{name}y"]),
        helper.make_node("Concat", ["past", f"{name}y"], [f"{name}k"], axis=1),
    ]
    made = [helper.make_tensor_value_info(f"{name}{k}", FLOAT, None) for k in "yk"]
    return helper.make_graph(nodes, name, [], made)


def test_branches_meet_new_lengths(loaded: list[object]) -> None:
    branches = {"then_branch": branch("then", "a"), "else_branch": branch("else", "b")}
    inputs = {
        "go": (TensorProto.BOOL, []),
        "x": (FLOAT, ["batch", "seq", 8]),
        "past": (FLOAT, ["batch", "past", 8]),
    }
    program = compiled([helper.make_node("If", ["go"], ["y", "k"], **branches)], inputs, ["y", "k"])
    for number in range(12):
        batch, seq, past = RNG.integers(1, 5, 3)
        go = bool(number % 2)
        x, cache = (RNG.standard_normal((batch, n, 8)).astype(np.float32) for n in (seq, past))
        y, k = map(np.asarray, program.run({"go": np.array(go), "x": x, "past": cache}))
        expected = np.maximum(x @ WEIGHTS["a" if go else "b"], 0)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(k, np.concatenate([cache, expected], 1), rtol=1e-5, atol=1e-5)
    assert not loaded  # kernels of both branches are steps of the plan


def test_loops_meet_new_lengths(loaded: list[object]) -> None:
    """The state keeps its lengths, and the scan has those of another value from outside."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "c"], ["m"]),
            helper.make_node("Tanh", ["m"], ["next"]),
            helper.make_node("MatMul", ["next", "other"], ["row"]),
            helper.make_node("Identity", ["go"], ["going"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, ["batch", "seq", 8]),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, ["batch", "seq", 8]),
            helper.make_tensor_value_info("row", FLOAT, ["batch", "seq", "columns"]),
        ],
    )
    inputs = {
        "trips": (TensorProto.INT64, []),
        "start": (TensorProto.BOOL, []),
        "x": (FLOAT, ["batch", "seq", 8]),
        "other": (FLOAT, [8, "columns"]),
    }
    loop = helper.make_node("Loop", ["trips", "start", "x"], ["last", "rows"], body=body)
    program = compiled([loop], inputs, ["last", "rows"])
    for trips in (3, 1, 5, 2, 0, 4):
        batch, seq, columns = RNG.integers(1, 5, 3)
        x = RNG.standard_normal((batch, seq, 8)).astype(np.float32)
        other = RNG.standard_normal((8, columns)).astype(np.float32)
        feeds = {"trips": np.array(trips), "start": np.array(True), "x": x, "other": other}
        last, rows = map(np.asarray, program.run(feeds))
        expected = np.zeros((trips, batch, seq, columns), np.float32)
        for k in range(trips):
            x = np.tanh(x @ WEIGHTS["c"])
            expected[k] = x @ other
        np.testing.assert_allclose(last, x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)
    assert len(loaded) == 1
