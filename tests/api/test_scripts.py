"""Features that MIGraphX's scripts use: branches, scalars, hand-built modules, arguments and literals of a shape."""

from __future__ import annotations

import array
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx
from mgx_numba.errors import ParseError, ShapeError

TARGETS = ("ref", "cpu")
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
CONDITION = migraphx.shape(type="bool", lens=[1], strides=[0])
WANTED = migraphx.shape(type="float_type", lens=[2, 3])
COLUMNS = migraphx.shape(type="float_type", lens=[2, 3], strides=[1, 2])
SIX = np.arange(6, dtype=np.float32)


def branches() -> bytes:
    """An If whose branches take values around them, and whose results have different lengths: a sum and a constant, or
    a constant and a product; the first one is the model's.
    """
    ones, twos = np.arange(1, 7, dtype=np.float32).reshape(2, 3), np.arange(9, dtype=np.float32).reshape(3, 3)
    info = helper.make_tensor_value_info
    bodies = []
    for name, node, constant in (
        ("then", helper.make_node("Add", ["x", "ones"], ["sum"]), numpy_helper.from_array(twos, "fixed_y")),
        ("else", helper.make_node("Mul", ["y", "twos"], ["product"]), numpy_helper.from_array(ones, "fixed_x")),
    ):
        results = [info(node.output[0], FLOAT, None), info(constant.name, FLOAT, None)]
        bodies.append(helper.make_graph([node], name, [], results if name == "then" else results[::-1], [constant]))
    choice = helper.make_node("If", ["cond"], ["first", "second"], then_branch=bodies[0], else_branch=bodies[1])
    graph = helper.make_graph(
        [choice],
        "graph",
        [info("x", FLOAT, [2, 3]), info("y", FLOAT, [3, 3]), info("cond", BOOL, [])],
        [info("first", FLOAT, None)],
        [numpy_helper.from_array(ones, "ones"), numpy_helper.from_array(twos, "twos")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7).SerializeToString()


def scalar_sum(opset: int) -> bytes:
    """uint8 values plus a uint8 without axes."""
    u8 = TensorProto.UINT8
    given = [helper.make_tensor_value_info(n, u8, lens) for n, lens in (("0", [2, 3, 4, 5]), ("1", []))]
    result = helper.make_tensor_value_info("out", u8, [2, 3, 4, 5])
    graph = helper.make_graph([helper.make_node("Add", ["0", "1"], ["out"])], "graph", given, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    return model.SerializeToString()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("condition", [True, False])
def test_branches_with_constants_as_results(target: str, condition: bool) -> None:
    net = migraphx.parse_onnx_buffer(branches())
    before = net.get_output_shapes()[-1]
    net.compile(migraphx.get_target(target))
    assert net.get_output_shapes()[-1] == before
    shapes = net.get_parameter_shapes()
    x = np.ones(shapes["x"].lens(), np.float32)
    y = np.full(shapes["y"].lens(), 2, np.float32)
    result = net.run({"x": x, "y": y, "cond": np.array(condition)})[-1]
    ones = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(result, x + ones if condition else ones)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("condition", [True, False])
def test_modules_of_a_program_built_by_hand(target: str, condition: bool) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    cond = main.add_parameter("cond", CONDITION)
    x, y = (main.add_parameter(n, migraphx.shape(lens=[3, 3], type="float")) for n in "xy")
    modules = []
    for name, value in (("If_0_if", x), ("If_0_else", y)):
        modules.append(net.create_module(name))
        modules[-1].add_return([modules[-1].add_instruction(migraphx.op("identity"), [value])])
    choice = main.add_instruction(migraphx.op("if"), [cond], modules)
    main.add_return([main.add_instruction(migraphx.op("get_tuple_elem", index=0), [choice])])
    net.compile(migraphx.get_target(target))
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    given = {"x": values, "y": 2 * values, "cond": np.array([condition]).reshape(())}
    np.testing.assert_array_equal(net.run(given)[-1], given["x" if condition else "y"])


@pytest.mark.parametrize("opset", [7, 11, 13, 14])
def test_a_type_that_only_later_operator_sets_list(opset: int) -> None:
    net = migraphx.parse_onnx_buffer(scalar_sum(opset))
    net.compile(migraphx.get_target("cpu"))
    values = memoryview(array.array("B", range(120)).tobytes()).cast("B", [2, 3, 4, 5])
    one = memoryview(array.array("B", [1]).tobytes()).cast("B", ())
    (result,) = net.run({"0": migraphx.argument(values), "1": migraphx.argument(one)})
    assert result.tolist() == list(range(1, 121))


def test_a_type_that_no_operator_set_lists() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", BOOL, [2])],
        [helper.make_tensor_value_info("y", BOOL, [2])],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    with pytest.raises(ParseError, match=r"Add.*opset 11.*input 0 \(A\) is of type tensor\(bool\)"):
        migraphx.parse_onnx_buffer(model.SerializeToString())


def test_argument_of_a_shape_is_zeros() -> None:
    made = migraphx.argument(WANTED)
    assert made.get_shape() == WANTED and made.tolist() == [0.0] * 6
    assert migraphx.argument(COLUMNS).get_shape() == COLUMNS
    with pytest.raises(ShapeError, match="dynamic shape"):
        migraphx.argument(migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 4)]))


def test_argument_of_a_shape_borrows_data_that_fits() -> None:
    for data in (SIX, SIX.reshape(2, 3), migraphx.argument(SIX)):
        made = migraphx.argument(WANTED, data)
        assert made.tolist() == SIX.tolist() and made.data_ptr() == SIX.ctypes.data
    flat = migraphx.argument(COLUMNS, SIX)
    assert flat.tolist() == [0, 2, 4, 1, 3, 5] and flat.data_ptr() == SIX.ctypes.data
    for copied in (migraphx.argument(COLUMNS, SIX.reshape(2, 3)), migraphx.argument(COLUMNS, list(range(6)))):
        assert copied.get_shape() == COLUMNS and copied.tolist() == SIX.tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.arange(6), "data is int64_type, {6}, {1}, expected elements of float_type"),
        (SIX[:5], "data is float_type, {5}, {1}, expected lengths [2, 3] or 6 elements in a row"),
        ([1.0], "Values and shape elements do not match"),
    ],
)
def test_data_that_does_not_fit_the_shape(data: object, message: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(message)):
        migraphx.argument(WANTED, data)
    with pytest.raises(ShapeError, match=re.escape(message)):
        migraphx.literal(WANTED, data)


def test_data_without_a_shape() -> None:
    with pytest.raises(ShapeError, match="data needs a shape before it, got ndarray"):
        migraphx.argument(SIX, SIX)
    with pytest.raises(ShapeError, match="values of float_type, .* are missing"):
        migraphx.literal(WANTED)


@pytest.mark.parametrize("target", TARGETS)
def test_literals(target: str) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    data = SIX.copy()
    values = [migraphx.literal(WANTED, range(6)), migraphx.literal(WANTED, data)]
    data[:] = 9
    assert migraphx.literal(2.5).get_shape() == migraphx.shape(type="double", lens=[1], strides=[0])
    main.add_return([main.add_instruction(migraphx.op("add"), [main.add_literal(v) for v in values])])
    net.compile(migraphx.get_target(target))
    assert net.run({})[-1].tolist() == (2 * SIX).tolist()


def test_ranges_are_equal_by_value() -> None:
    assert migraphx.dynamic_dimension(1, 4, {2}) == migraphx.dynamic_dimension(1, 4, {2})
    assert migraphx.dynamic_dimension(1, 4) != migraphx.dynamic_dimension(1, 5)
    assert len({migraphx.dynamic_dimension(1, 4), migraphx.dynamic_dimension(1, 4)}) == 1
