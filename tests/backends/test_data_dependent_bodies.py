"""Errors of loops and branches with lengths known only at run time, and unfitting branches, equal on all targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mgx_numba.errors import MgxError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.specialize import specialize
from mgx_numba.targets.registry import compile_for

from ..cpu.control_models import GO, info, loop, model_of
from ..interpreter.engine import interpreted

Feeds = dict[str, np.ndarray]
Results = Callable[[Feeds], list[np.ndarray]]


@pytest.fixture(params=["ref", "cpu", "gpu"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    return str(request.param)


def results_of(target: str, program: Program) -> Results:
    """Return a function that runs a program on a target; the interpreter stands in for a device."""
    with interpreted():
        net = compile_for(target, program)

    def results(feeds: Feeds) -> list[np.ndarray]:
        with interpreted():
            return net.run(feeds)

    return results


def parsed(model: bytes, symbols: bool = True) -> Program:
    return parse_onnx(onnx.load_from_string(model), use_debug_symbols=symbols)


def branch(nodes: list[onnx.NodeProto], name: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [info(name, None)])


def narrowing_loop(trips: int, collected: bool = False) -> tuple[bytes, Feeds]:
    """A value of 4 columns that is multiplied by a matrix of 4 rows; the third iteration leaves it 2 columns, which are
    collected if asked for."""
    nodes = [
        GO,
        helper.make_node("MatMul", ["v", "w"], ["m"], name="product"),
        helper.make_node("ReduceSum", ["m"], ["total"], keepdims=1),
        helper.make_node("Equal", ["i", "late"], ["is_late"]),
        helper.make_node("Where", ["is_late", "two", "four"], ["end"]),
        helper.make_node("Slice", ["v", "zero", "end", "one"], ["cut"]),
        helper.make_node("Add", ["cut", "total"], ["v_out"]),
        *([helper.make_node("Identity", ["cut"], ["scan0"])] if collected else []),
    ]
    node = loop(nodes, None, ["y", "rows"][: 1 + collected], int(collected))
    node.name = "decode"
    constants = {name: np.array([n]) for n, name in ((2, "two"), (4, "four"), (0, "zero"), (1, "one"))}
    feeds = {"x": np.ones((3, 4), np.float32), "n": np.array(trips)}
    weights = np.full((4, 4), 0.1, np.float32)
    return model_of([node], feeds, [*node.output], w=weights, late=np.array(2), **constants), feeds


def compressing_branches() -> tuple[bytes, Feeds]:
    """Chosen columns, multiplied by a matrix of 3 rows or by one of 2."""
    graphs = [
        branch(
            [
                helper.make_node("Compress", ["x", "chosen"], ["rows"], axis=1),
                helper.make_node("MatMul", ["rows", weights], [name], name=f"product_{name}"),
            ],
            name,
        )
        for name, weights in (("three", "w"), ("two", "u"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1], name="choose")
    feeds = {"c": np.array([True]), "x": np.ones((2, 4), np.float32), "chosen": np.array([True, False, True, True])}
    return model_of([node], feeds, ["y"], w=np.ones((3, 2), np.float32), u=np.ones((2, 2), np.float32)), feeds


def growing_loop(condition: list[onnx.NodeProto], number: int = 0) -> tuple[bytes, Feeds]:
    """A value [2, 4] that each iteration adds a row to; one branch of an ``If`` multiplies 2 of its rows alone."""
    narrow = branch([helper.make_node("MatMul", ["u", "v"], ["then"], name="narrow")], "then")
    largest = helper.make_node("ReduceMax", ["v"], ["largest"], axes=[0], keepdims=1)
    wide = branch([largest, helper.make_node("MatMul", ["largest", "w"], ["otherwise"], name="wide")], "otherwise")
    nodes = [
        GO,
        *condition,
        helper.make_node("If", ["c"], ["m"], name="choose", then_branch=narrow, else_branch=wide),
        helper.make_node("Concat", ["v", "m"], ["v_out"], axis=0),
    ]
    node = loop(nodes, None, ["y"], 0)
    node.name = "decode"
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "n": np.array(3)}
    weights = {"u": np.full((1, 2), 0.5, np.float32), "w": np.full((4, 4), 0.25, np.float32)}
    constants = {"number": np.array(number), "zero": np.array(0), "two": np.array(2)}
    return model_of([node], feeds, ["y"], **weights, **constants), feeds


BY_LENGTH = [
    helper.make_node("Shape", ["v"], ["lens"]),
    helper.make_node("Gather", ["lens", "zero"], ["rows"]),
    helper.make_node("Equal", ["rows", "two"], ["c"]),
]
BY_NUMBER = [helper.make_node("Equal", ["i", "number"], ["c"])]


def grown(feeds: Feeds) -> np.ndarray:
    """The result of `growing_loop` whose first iteration takes the first branch."""
    x = feeds["x"]
    for k in range(int(feeds["n"])):
        new = np.full((1, 2), 0.5) @ x if k == 0 else x.max(0, keepdims=True) @ np.full((4, 4), 0.25)
        x = np.concatenate([x, new.astype(np.float32)])
    return x


@pytest.mark.parametrize("symbols", [True, False])
def test_an_error_of_an_iteration_names_the_loop_and_the_iteration(target: str, symbols: bool) -> None:
    model, feeds = narrowing_loop(2)
    run = results_of(target, parsed(model, symbols))
    good = run(feeds)
    nodes = ("node decode: ", "node product: ")
    if not symbols:
        nodes = (r"node 'decode' \(Loop, .*\): ", r"node 'product' \(MatMul, .*\): ")
    place = f"{nodes[0]}loop: iteration 3 \\(from 0\\) of 'decode_loop': {nodes[1]}dot: "
    for _ in range(2):
        with pytest.raises(ShapeError, match=rf"^{place}inner lengths of \[3, 2\] x \[4, 4\] differ: 2 and 4$"):
            run({**feeds, "n": np.array(5)})
    np.testing.assert_array_equal(run(feeds)[0], good[0])


def test_an_error_of_a_branch_names_it(target: str) -> None:
    model, feeds = compressing_branches()
    run = results_of(target, parsed(model))
    good = run(feeds)
    place = "^node choose: if: branch 'choose_else': node product_two: dot: inner lengths of"
    for _ in range(2):
        with pytest.raises(ShapeError, match=rf"{place} \[2, 3\] x \[2, 2\] differ"):
            run({**feeds, "c": np.array([False])})
    run({**feeds, "c": np.array([False]), "chosen": np.array([True, False, False, True])})
    np.testing.assert_array_equal(run(feeds)[0], good[0])


def test_elements_of_a_scan_output_of_other_lengths_are_an_error_of_an_iteration(target: str) -> None:
    model, feeds = narrowing_loop(2, collected=True)
    run = results_of(target, parsed(model))
    assert run(feeds)[1].shape[1:] == (3, 4)
    place = r"^node decode: loop: iteration 2 \(from 0\) of 'decode_loop': "
    with pytest.raises(ShapeError, match=rf"{place}elements of a scan output have lengths \[3, 4\] and \[3, 2\]$"):
        run({**feeds, "n": np.array(3)})
    assert run(feeds)[0].shape == (3, 4)


@pytest.mark.parametrize("condition", [BY_LENGTH, BY_NUMBER], ids=["length", "number"])
def test_a_branch_that_is_not_taken_was_planned_for_lengths_that_do_not_fit_it(
    target: str, condition: list[onnx.NodeProto]
) -> None:
    model, feeds = growing_loop(condition)
    run = results_of(target, parsed(model))
    for trips in (3, 0, 1, 3):
        given = {**feeds, "n": np.array(trips)}
        np.testing.assert_allclose(run(given)[0], grown(given), rtol=1e-5)


def test_a_branch_that_lengths_do_not_fit_fails_when_it_is_taken(target: str) -> None:
    model, feeds = growing_loop(BY_NUMBER, number=1)
    run = results_of(target, parsed(model))
    good = run({**feeds, "n": np.array(1)})
    loop_place = r"^node decode: loop: iteration 1 \(from 0\) of 'decode_loop': "
    place = "node choose: if: branch 'choose_if': node narrow: dot: inner lengths of"
    with pytest.raises(ShapeError, match=rf"{loop_place}{place} \[1, 2\] x \[3, 4\] differ: 2 and 3$"):
        run(feeds)
    np.testing.assert_array_equal(run({**feeds, "n": np.array(1)})[0], good[0])


def multiplying_loop(collected: bool, chosen: bool) -> bytes:
    """``x`` [a, b], or columns of it that are chosen, to which each iteration adds the sum of its product with a matrix
    of 3 rows; the products are collected if asked for."""
    nodes = [
        GO,
        helper.make_node("MatMul", ["z", "w"], ["m"], name="product"),
        helper.make_node("ReduceSum", ["m"], ["total"], keepdims=1),
        helper.make_node("Add", ["v", "total"], ["v_out"]),
        *([helper.make_node("Identity", ["m"], ["scan0"])] if collected else []),
    ]
    node = loop(nodes, None, ["y", "rows"][: 1 + collected], int(collected))
    node.name, node.input[2] = "decode", "z"
    if chosen:
        first = helper.make_node("Compress", ["x", "chosen"], ["z"], axis=1)
    else:
        first = helper.make_node("Identity", ["x"], ["z"])
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(1), "chosen": np.ones(3, bool)}
    text = model_of([first, node], feeds, [*node.output], w=np.full((3, 3), 0.1, np.float32))
    model = onnx.load_from_string(text)
    for number, names in ((0, ("a", "b")), (2, ("b",))):
        for dim, name in zip(model.graph.input[number].type.tensor_type.shape.dim, names):
            dim.dim_param = name
    return model.SerializeToString()


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("collected", [False, True])
def test_the_body_of_a_loop_of_no_iteration_had_to_fit(target: str, collected: bool, chosen: bool) -> None:
    """Where it runs, lengths that do not fit it are an error of the first iteration, on all targets alike."""
    run = results_of(target, parsed(multiplying_loop(collected, chosen)))
    place = r"^node decode: loop: iteration 0 \(from 0\) of 'decode_loop': node product: dot: inner lengths of"
    for columns, trips in ((3, 2), (4, 0), (4, 1), (3, 0), (5, 0), (3, 1)):
        x = np.ones((2, 6 if chosen else columns), np.float32)
        feeds = {"x": x, "n": np.array(trips), "chosen": np.arange(x.shape[1]) < columns}
        if columns != 3 and trips:
            with pytest.raises(ShapeError, match=rf"{place} \[2, {columns}\] x \[3, 3\] differ"):
                run(feeds)
            continue
        y, *rows = run(feeds)
        np.testing.assert_allclose(y, np.full((2, columns), 1 + 1.8 * trips), rtol=1e-6)
        assert [r.shape[::2] for r in rows] == [(trips, 3)] * collected


def squeezing_model() -> bytes:
    """``x`` [n, 3]: without its first axis if n is 1, else the sum over it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["lens"]),
        helper.make_node("Gather", ["lens", "zero"], ["rows"]),
        helper.make_node("Equal", ["rows", "one"], ["c"]),
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch([helper.make_node("Squeeze", ["x", "axes"], ["squeezed"])], "squeezed"),
            else_branch=branch([helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0)], "sum"),
        ),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "axes": np.array([0]), "w": np.ones((3, 2), np.float32)}
    model = onnx.load_from_string(model_of(nodes, {"x": np.ones((1, 3), np.float32)}, ["z"], **constants))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return model.SerializeToString()


def test_a_branch_chosen_by_a_length_of_an_input_is_the_only_one_that_has_to_fit(target: str) -> None:
    run = results_of(target, parsed(squeezing_model()))
    for rows in (1, 3, 0, 1):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_allclose(run({"x": x})[0], x.sum(0) @ np.ones((3, 2)), rtol=1e-6)


def failing(program: Program, **lens: Any) -> str:
    with pytest.raises(MgxError) as caught:
        specialize(program, lens)
    return str(caught.value)


def test_an_error_of_a_branch_that_a_length_chose_named_the_if_alone(target: str) -> None:
    relu = branch([helper.make_node("Relu", ["x"], ["otherwise"])], "otherwise")
    product = branch([helper.make_node("MatMul", ["x", "w"], ["then"], name="product")], "then")
    nodes = [
        helper.make_node("Shape", ["x"], ["lens"]),
        helper.make_node("Gather", ["lens", "one"], ["columns"]),
        helper.make_node("Greater", ["columns", "one"], ["c"]),
        helper.make_node("If", ["c"], ["y"], name="choose", then_branch=product, else_branch=relu),
    ]
    graph = helper.make_graph(
        nodes,
        "chosen",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", "columns"])],
        [info("y", None)],
        [onnx.numpy_helper.from_array(v, n) for n, v in (("w", np.ones((4, 4), np.float32)), ("one", np.array(1)))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    run = results_of(target, parsed(model.SerializeToString()))
    assert run({"x": np.ones((2, 4), np.float32)})[0].sum() == 32
    with pytest.raises(ShapeError, match="node choose: if: branch 'choose_if': node product: dot: inner lengths"):
        run({"x": np.ones((2, 5), np.float32)})


def test_lengths_that_fit_no_branch_are_refused() -> None:
    graphs = [
        branch([helper.make_node("MatMul", ["x", weights], [name])], name) for name, weights in (("a", "u"), ("b", "w"))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1], name="choose")
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array([True])}
    text = model_of([node], feeds, ["y"], u=np.ones((2, 4), np.float32), w=np.ones((3, 4), np.float32))
    model = onnx.load_from_string(text)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    program = parsed(model.SerializeToString())
    told = failing(program, x=[2, 5])
    assert told.startswith("node choose: if: branch 'choose_if': ") and "; if: branch 'choose_else': " in told
    settled = specialize(program, {"x": [2, 3]})
    assert sorted(m.name for m in settled.modules) == ["choose_else", "choose_if", "main"]
    assert settled.output_shapes()[0].lens == (2, 4)
    (only,) = (ins for ins in settled.module("choose_if") or [] if ins.name == "unfitting")
    assert "inner lengths of [2, 3] x [2, 4] differ" in only.op.attributes()["reason"]
