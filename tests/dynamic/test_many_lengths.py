"""Programs with many open lengths, or long expressions of lengths, compile in a time that grows with their size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx
from mgx_numba.core.dim import Scope, minimum
from mgx_numba.graph import symbolic
from mgx_numba.graph.specialize import Specializer


def model(nodes: list[Any], inputs: dict[str, list[Any]], outputs: list[str], **constants: list[int]) -> bytes:
    values = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, lens) for name, lens in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs]
    graph = helper.make_graph(nodes, "g", given, results, values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(made)
    found: bytes = made.SerializeToString()
    return found


def run(compiled: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.array(one) for one in compiled.run({name: migraphx.argument(x) for name, x in feeds.items()})]


def compiled(data: bytes) -> Any:
    return migraphx.parse_onnx_buffer(data).compile(migraphx.get_target("cpu"))


@pytest.mark.parametrize("parts", (1, 3, 40))
def test_an_open_axis_split_into_equal_parts_has_short_bounds(parts: int) -> None:
    """Each bound was the sum of all parts before it. Lengths: 0, fewer and more than parts, multiples, odd ones."""
    names = [f"y{k}" for k in range(parts)]
    program = compiled(model([helper.make_node("Split", ["x"], names, num_outputs=parts)], {"x": ["n", 2]}, names))
    for length in (0, 1, parts - 1, parts, parts + 1, 2 * parts, 5 * parts - 2):
        x = np.arange(length * 2, dtype=np.float32).reshape(length, 2)
        each = -(-length // parts)
        found = run(program, {"x": x})
        for k, part in enumerate(found):
            np.testing.assert_array_equal(part, x[k * each : (k + 1) * each])


def test_the_text_of_nested_bounds_is_short() -> None:
    """Each expression has the one before it three times: the text grew by this factor with each slice."""
    with Scope() as scope:
        length: Any = scope.symbol("n")
        for _ in range(600):
            length = minimum(length, 3 + length // 2)
        assert len(str(length)) < 10_000
        assert "..." in str(length)


def test_slices_of_slices_of_an_open_axis() -> None:
    nodes, x = [], "x"
    for k in range(60):
        nodes.append(helper.make_node("Slice", [x, f"s{k % 3}", f"e{k % 2}", "axes"], [f"l{k}"]))
        nodes.append(helper.make_node(("Relu", "Neg")[k % 2], [f"l{k}"], [x := f"x{k}"]))
    data = model(nodes, {"x": ["m", "n"]}, [x], s0=[1], s1=[0], s2=[2], e0=[2**62], e1=[-1], axes=[1])
    program = compiled(data)
    for length in (0, 1, 59, 90, 131):
        want = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
        found = run(program, {"x": want})
        for k in range(60):
            want = want[:, (1, 0, 2)[k % 3] : (None, -1)[k % 2]]
            want = -want if k % 2 else np.maximum(want, 0)
        np.testing.assert_array_equal(found[0], want)


def test_each_equality_of_lengths_had_a_copy_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """For equal lengths of 60 inputs with lengths of their own, all equalities are found in one copy."""
    count = 60
    node = helper.make_node("Sum", [f"x{k}" for k in range(count)], ["y"])
    program = compiled(model([node], {f"x{k}": [f"m{k}", f"n{k}"] for k in range(count)}, ["y"]))
    copies: list[object] = []
    original = Specializer.copy

    def copy(self: Specializer, source: Any) -> Any:
        copies.append(self)
        return original(self, source)

    monkeypatch.setattr(symbolic.Specializer, "copy", copy)
    rng = np.random.default_rng(1)
    for lens in ((3, 5), (4, 4), (1, 7), (0, 2)):
        feeds = {f"x{k}": rng.standard_normal(lens).astype(np.float32) for k in range(count)}
        np.testing.assert_allclose(run(program, feeds)[0], sum(feeds.values()), rtol=1e-5, atol=1e-5)
    assert len(copies) <= 4 * 3, len(copies)


def test_lengths_of_their_own_of_many_inputs() -> None:
    """Each of 40 lengths had samples of its own, which all problems tried."""
    count = 40
    node = helper.make_node("Concat", [f"x{k}" for k in range(count)], ["y"], axis=1)
    program = compiled(model([node], {f"x{k}": ["m", f"n{k}"] for k in range(count)}, ["y"]))
    rng = np.random.default_rng(1)
    for rows in (0, 1, 3):
        feeds = {f"x{k}": rng.standard_normal((rows, int(rng.integers(4)))).astype(np.float32) for k in range(count)}
        np.testing.assert_array_equal(run(program, feeds)[0], np.concatenate(list(feeds.values()), axis=1))
