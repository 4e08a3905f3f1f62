"""Operators that run submodules, tuples and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError, ShapeError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.ops.base import make_op
from mgx_numba.targets.ref.interpreter import evaluate

from ..values import normal
from .running import call, shape

FLOAT = Type.float_type
BOOL, INT64 = Type.bool_type, Type.int64_type


def run(
    name: str, inputs: dict[str, np.ndarray], modules: Sequence[Module], program: Program, **attributes: Any
) -> Any:
    """Value of one instruction on parameters, run with its submodules by the reference interpreter."""
    main = program.main
    params = []
    for key, value in inputs.items():
        lens = value.shape or None
        params.append(main.add_parameter(key, Shape(Type.float_type, lens).with_type(_type(value))))
    main.add_return([main.add_instruction(name, params, modules, **attributes)])
    return evaluate(program, inputs)[0]


def _type(value: np.ndarray) -> Type:
    from mgx_numba.core.types import from_numpy

    return from_numpy(value.dtype)


def test_pointwise_module_with_two_results() -> None:
    program = Program()
    body = program.create_module("main:pointwise0")
    x0, x1 = (body.add_parameter(n, Shape(FLOAT)) for n in ("x0", "x1"))
    total = body.add_instruction("add", [x0, x1])
    body.add_return([body.add_instruction("mul", [total, body.add_literal(np.float32(2))]), total])
    a, b = normal(3, 4), normal(4, 3).T
    product, total_value = run("pointwise", {"a": a, "b": b}, [body], program)
    np.testing.assert_allclose(product, 2 * (a + b), rtol=1e-6)
    np.testing.assert_array_equal(total_value, a + b)
    op = make_op("pointwise")
    assert op.compute_shape([Shape(FLOAT, (2, 3))] * 2, [body]).sub_shapes == (Shape(FLOAT, (2, 3)),) * 2
    with pytest.raises(ShapeError, match="2 parameters"):
        op.compute_shape([Shape(FLOAT, (2, 3))], [body])
    with pytest.raises(ShapeError, match="double_type"):
        op.compute_shape([Shape(Type.double_type, (2,))] * 2, [body])
    with pytest.raises(ShapeError, match="different lengths"):
        op.compute_shape([Shape(FLOAT, (2,)), Shape(FLOAT, (3,))], [body])


def test_fused_reduce_evaluates_its_module() -> None:
    program = Program()
    body = program.create_module("main:reduce0")
    x = body.add_parameter("x0", Shape(FLOAT, (3, 4)))
    total = body.add_instruction("reduce_sum", [x], axes=(1,))
    body.add_return(
        [body.add_instruction("div", [x, body.add_instruction("multibroadcast", [total], out_lens=(3, 4))])]
    )
    a = normal(3, 4)
    result = run("fused_reduce", {"a": a}, [body], program, axes=(1,))
    np.testing.assert_allclose(result, a / a.sum(1, keepdims=True), rtol=1e-5)
    assert str(make_op("fused_reduce", axes=(1,))) == "fused_reduce[axes={1}]"


def test_fused_concat_joins_computed_parts() -> None:
    program = Program()
    parts = []
    for k, name in enumerate(("neg", "exp")):
        part = program.create_module(f"part{k}")
        part.add_return([part.add_instruction(name, [part.add_parameter("x0", Shape(FLOAT))])])
        parts.append(part)
    last = program.create_module("last")
    last.add_return([last.add_instruction("add", [last.add_parameter(n, Shape(FLOAT)) for n in ("x0", "x1")])])
    a, b, c = normal(2, 3), normal(2, 2), normal(2, 5)
    result = run("fused_concat", {"a": a, "b": b, "c": c}, [*parts, last], program, axis=1)
    np.testing.assert_allclose(result, np.concatenate([-a, np.exp(b)], 1) + c, rtol=1e-6)
    with pytest.raises(ShapeError, match="do not match the parameters"):
        make_op("fused_concat", axis=1).compute_shape([Shape(FLOAT, (2, 3))] * 2, [*parts, last])


def test_group_runs_its_module() -> None:
    program = Program()
    body = program.create_module("g")
    body.add_return([body.add_instruction("neg", [body.add_parameter("x0", Shape(FLOAT, (2,)))])])
    assert run("group", {"a": np.ones(2, np.float32)}, [body], program, tag="attention").tolist() == [-1, -1]


@pytest.mark.parametrize("condition", [False, True])
def test_if_uses_values_of_the_enclosing_module(condition: bool) -> None:
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(FLOAT, (2,)))
    flag = main.add_parameter("flag", Shape(BOOL))
    branches = []
    for name in ("neg", "exp"):
        branch = program.create_module(name)
        branch.add_return([branch.add_instruction(name, [x])])
        branches.append(branch)
    chosen = main.add_instruction("if", [flag], branches)
    assert str(chosen.shape) == "[float_type, {2}, {1}]"
    main.add_return([main.add_instruction("get_tuple_elem", [chosen], index=0)])
    value = np.array([1, 2], np.float32)
    result = evaluate(program, {"x": value, "flag": np.array(condition)})[0]
    np.testing.assert_allclose(result, -value if condition else np.exp(value), rtol=1e-6)


def test_if_of_different_lengths_and_what_it_refuses() -> None:
    program = Program()
    branches = []
    for k, value in enumerate(
        [np.zeros((2, 3)), np.zeros((5, 3)), np.zeros(2), np.zeros(1), np.zeros(()), np.array(0)]
    ):
        branch = program.create_module(f"b{k}")
        branch.add_return([branch.add_literal(value.astype(np.float32) if value.dtype.kind == "f" else value)])
        branches.append(branch)
    op, flag = make_op("if"), Shape(BOOL)
    assert op.compute_shape([flag], branches[:2]).sub_shapes[0].dims == (
        DynamicDimension(2, 5),
        DynamicDimension(3, 3),
    )
    for first, second in ((1, 2), (2, 4), (3, 4), (4, 3)):  # of two ranks
        assert op.compute_shape([flag], [branches[first], branches[second]]).sub_shapes[0] == Shape.unranked(FLOAT)
    with pytest.raises(ShapeError, match="in one branch"):
        op.compute_shape([flag], branches[4:])
    with pytest.raises(ShapeError, match="one bool"):
        op.compute_shape([Shape(FLOAT)], branches[:2])
    with pytest.raises(ShapeError, match="2"):
        op.compute_shape([flag], branches[:1])


def loop_body(program: Program) -> Module:
    """Counts the carried sum up by the iteration's number, stops above 5, and gives its square."""
    body = program.create_module("body")
    i, _, total = (body.add_parameter(n, s) for n, s in (("i", Shape(INT64)), ("go", Shape(BOOL)), ("t", Shape(INT64))))
    total = body.add_instruction("add", [total, i])
    five = body.add_literal(np.int64(5))
    go = body.add_instruction("not", [body.add_instruction("greater", [total, five])])
    body.add_return([go, total, body.add_instruction("mul", [total, total])])
    return body


@pytest.mark.parametrize(("trips", "total", "squares"), [(3, 3, [0, 1, 9]), (100, 6, [0, 1, 9, 36]), (0, 0, [])])
def test_loop(trips: int, total: int, squares: list) -> None:
    program = Program()
    inputs = {"n": np.array(trips), "go": np.array(True), "t": np.array(0)}
    values = run("loop", inputs, [loop_body(program)], program, max_iterations=6)
    assert [v.reshape(-1).tolist() for v in values] == [[total], squares + [0] * (6 - len(squares))]


def test_loop_fills_scan_outputs_from_the_end() -> None:
    program = Program()
    inputs = {"n": np.array(3), "go": np.array(True), "t": np.array(0)}
    values = run("loop", inputs, [loop_body(program)], program, max_iterations=3, scan_output_directions=(1,))
    assert values[1].reshape(-1).tolist() == [9, 1, 0]


def test_loop_that_outgrows_its_scan_outputs_is_an_error() -> None:
    program = Program()
    inputs = {"n": np.array(9), "go": np.array(True), "t": np.array(0)}
    with pytest.raises(MgxError, match="max_iterations=2"):
        run("loop", inputs, [loop_body(program)], program, max_iterations=2)
    with pytest.raises(ShapeError, match="parameters"):
        make_op("loop").compute_shape([Shape(INT64), Shape(BOOL)], [program.modules[1]])


def test_select_module_goes_by_lengths() -> None:
    program = Program()
    choices = []
    for n in (2, 3):
        choice = program.create_module(f"dim_{n}")
        x = choice.add_parameter("x", Shape(FLOAT, (n,)))
        choice.add_return([choice.add_instruction("mul", [x, choice.add_literal(np.full(n, n, np.float32))])])
        choices.append(choice)
    output = Shape.tuple([Shape.dynamic(FLOAT, [DynamicDimension(2, 3)])])
    main = program.main
    x = main.add_parameter("x", Shape.dynamic(FLOAT, [DynamicDimension(2, 4)]))
    main.add_return([main.add_instruction("select_module", [x], choices, output_dyn_shapes=output)])
    assert evaluate(program, {"x": np.ones(3, np.float32)})[0][0].tolist() == [3, 3, 3]
    with pytest.raises(MgxError, match=r"no submodule takes float_type \[4\]"):
        evaluate(program, {"x": np.ones(4, np.float32)})


@pytest.mark.parametrize("uses", [1, 2])
def test_run_on_target_runs_its_module_with_inputs_in_the_order_of_names(uses: int) -> None:
    program = migraphx.program()
    main, body = program.get_main_module(), program.create_module("part")
    like = migraphx.shape(type="float", lens=[2, 3])
    x, y = (main.add_parameter(name, like) for name in "xy")
    second, first = (body.add_parameter(name, like) for name in ("second", "first"))
    seen = body.add_instruction(migraphx.op("capture", ins_index=3), [first])
    body.add_return([body.add_instruction(migraphx.op("sub"), [first, second]), seen])
    results = []
    for given in [[x, y], [y, y]][:uses]:
        ran = main.add_instruction(migraphx.op("run_on_target", target_id=1), given, [body])
        results += [main.add_instruction(migraphx.op("get_tuple_elem", index=k), [ran]) for k in (0, 1)]
    main.add_return(results)
    a, b = normal(2, 3), normal(2, 3, seed=1)
    for target in ("ref", "cpu"):
        found = program.compile(target).run({"x": a, "y": b})
        for result, wanted in zip(found, [a - b, a, np.zeros_like(a), b]):
            np.testing.assert_array_equal(result, wanted)
    with pytest.raises(ShapeError, match="run_on_target: .*2 parameters"):
        main.add_instruction(migraphx.op("run_on_target"), [x], [body])
    other = main.add_parameter("z", migraphx.shape(type="float", lens=[3, 2]))
    with pytest.raises(ShapeError, match="module 'part': .*first.* is .*{2, 3}.*, got .*{3, 2}"):
        main.add_instruction(migraphx.op("run_on_target"), [other, y], [body])


def test_get_tuple_elem() -> None:
    pair = (normal(2), normal(3))
    np.testing.assert_array_equal(call("get_tuple_elem", pair, index=1), pair[1])
    with pytest.raises(ShapeError, match="out of range"):
        shape("get_tuple_elem", pair, index=2)
    with pytest.raises(ShapeError, match="must be a tuple"):
        shape("get_tuple_elem", pair[0])


def test_buffers() -> None:
    assert call("allocate", shape=Shape(FLOAT, (2, 3))).shape == (2, 3)
    assert call("allocate", np.array([4, 2]), buf_type="int8_type").shape == (4, 2)
    assert str(make_op("allocate", shape=Shape(FLOAT, (2,)))) == "allocate[shape=float_type, {2}, {1},buf_type=nullopt]"
    assert call("fill", np.float32(7), np.zeros((2, 2), np.float32)).tolist() == [[7, 7]] * 2
    with pytest.raises(ShapeError, match="buf_type"):
        shape("allocate", np.array([4, 2]))


def test_load_sees_part_of_an_arena() -> None:
    arena = np.zeros(64, np.int8)
    arena[16:40] = np.arange(6, dtype=np.float32).view(np.int8)
    seen = Shape(FLOAT, (2, 3), (1, 2))
    assert call("load", arena, shape=seen, offset=16).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert str(make_op("load", shape=seen, offset=16)) == "load[offset=16,end=40]"
    with pytest.raises(ShapeError, match="not inside"):
        shape("load", arena, shape=seen, offset=44)
    with pytest.raises(ShapeError, match="aligned"):
        shape("load", arena, shape=seen, offset=2)


def test_outline_was_an_unknown_operator() -> None:
    assert call("outline", shape=Shape(FLOAT, (2, 3), (1, 2))).tolist() == [[0, 0, 0]] * 2
    assert str(make_op("outline", shape=Shape(FLOAT, (2,)))) == "outline[shape=float_type, {2}, {1}]"
    with pytest.raises(ShapeError, match="fixed lengths"):
        shape("outline", shape=Shape.dynamic(FLOAT, [DynamicDimension(1, 4)]))


def test_undefined_has_no_axes() -> None:
    assert str(shape("undefined")) == "float_type, {}, {}"
