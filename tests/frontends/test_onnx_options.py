"""Options of `parse_onnx`: dimensions, dynamic shapes, unknown operators, debug symbols."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension as Dim
from mgx_numba.errors import OptionError
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .onnx_cases import run_program
from .support import FLOAT, make_model, single


def symbolic(nodes: Sequence[onnx.NodeProto], dims: Sequence[Any], **extra: Any) -> onnx.ModelProto:
    """A model with one input ``x`` of these (symbolic, fixed or absent) dimensions and one output ``y``."""
    model = make_model(nodes, {}, {"y": FLOAT}, **extra)
    model.graph.input.append(helper.make_tensor_value_info("x", FLOAT, list(dims)))
    return model


def relu(*dims: Any) -> onnx.ModelProto:
    return symbolic([helper.make_node("Relu", ["x"], ["y"])], dims)


def lens(model: onnx.ModelProto, **options: Any) -> str:
    shape = parse_onnx(model, **options).parameter_shapes()["x"]
    return str([d.min if d.is_fixed else (d.min, d.max) for d in shape.dims])


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, None),
        ({"default_dim_value": 3}, {0: "batch", 1: ""}),
        ({"dim_params": {"batch": 3}, "default_dim_value": 1}, {1: ""}),
        ({"map_input_dims": {"x": [1, 1, 3]}}, None),
        ({"default_dyn_dim_value": Dim(1, 4)}, None),
    ],
)
def test_axes_that_only_the_default_gives_a_length_are_noted(options: Any, expected: Any) -> None:
    assert parse_onnx(relu("batch", None, 3), **options).open_dims.get("x") == expected
    assert parse_onnx(relu(2, 3)).open_dims == {}


def test_open_dimensions_silently_became_one() -> None:
    program = parse_onnx(relu("batch", "tokens", 3))
    assert str(program.parameter_shapes()["x"]) == "dynamic, float_type, {batch, tokens, 3}"
    assert str(program.output_shapes()[0]) == "dynamic, float_type, {batch, tokens, 3}"
    for given in ((2, 5, 3), (1, 1, 3), (0, 4, 3)):
        assert run_program(program, {"x": np.zeros(given, np.float32)})[0].shape == given


def test_default_dim_value() -> None:
    assert lens(relu("batch", None, 3), default_dim_value=4) == "[4, 4, 3]"


def test_default_dyn_dim_value() -> None:
    assert lens(relu("batch", 3), default_dyn_dim_value=Dim(1, 8)) == "[(1, 8), 3]"


def test_dim_params_go_before_defaults() -> None:
    options = {"dim_params": {"batch": 2, "tokens": Dim(1, 16)}, "default_dim_value": 5}
    assert lens(relu("batch", "tokens", None), **options) == "[2, (1, 16), 5]"


def test_map_input_dims_go_before_all() -> None:
    assert lens(relu("batch", 3), map_input_dims={"x": [7, 5]}, default_dim_value=2) == "[7, 5]"
    assert lens(relu("batch", 3), map_dyn_input_dims={"x": [Dim(2, 4), 3]}) == "[(2, 4), 3]"


def test_zero_is_a_length_if_it_is_given_or_everything_is_as_onnx_wants_it() -> None:
    assert lens(relu(0, 3), strict=True) == "[0, 3]"
    assert lens(relu(0, 3), map_input_dims={"x": [0, 3]}) == "[0, 3]"


def test_the_default_range_of_migraphx_counts_as_not_given() -> None:
    assert lens(relu("batch"), default_dyn_dim_value=Dim(1, 1), default_dim_value=3) == "[3]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default_dim_value": 2, "default_dyn_dim_value": Dim(1, 4)}, "both set"),
        ({"map_input_dims": {"x": [1]}, "map_dyn_input_dims": {"x": [Dim(1, 2)]}}, "both set"),
        ({"map_input_dims": {"z": [1]}}, "map_input_dims names 'z', which is no input; inputs are: x"),
        ({"map_input_dims": {"x": [1, 2]}}, "has 1 dimensions, but 2 are given"),
        ({"map_input_dims": {"x": [-1]}}, "holds -1, expected an integer that is not negative"),
        ({"map_input_dims": {"x": 3}}, "must be a list of dimensions, got 3"),
        ({"dim_params": {"batch": "four"}}, "holds 'four'"),
        ({"default_dim_value": -1}, "default_dim_value must be an integer"),
        ({"default_dyn_dim_value": 3}, "must be a dynamic dimension"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_onnx(relu("batch"), **options)


def test_symbols_that_no_input_has_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="'tokens', which no input has; symbolic dimensions are: batch"):
        parse_onnx(relu("batch"), dim_params={"tokens": 3})


@pytest.mark.parametrize("dim", ["?", "None", "-1"])
def test_exporters_marks_of_unknown_lengths_are_no_symbols_that_make_lengths_equal(dim: str) -> None:
    """A model of Paddle2ONNX with an image of ``?`` by ``?`` was planned for squares, then again for its first run."""
    compiled = public_program.wrap(parse_onnx(relu(dim, dim))).compile("cpu")
    x = normal(3, 5)
    np.testing.assert_array_equal(np.asarray(compiled.run({"x": x})[0]), np.maximum(x, 0))
    assert len(compiled.open_plans()) == 1
    assert lens(relu(dim, dim), dim_params={dim: 4}) == "[4, 4]"


def test_inputs_without_axes_are_scalars() -> None:
    program = parse_onnx(relu())
    assert str(program.parameter_shapes()["x"]) == "float_type, {1}, {0}"


def test_unknown_operators_can_be_skipped() -> None:
    model = symbolic([helper.make_node("Mystery", ["x"], ["m"]), helper.make_node("Relu", ["m"], ["y"])], [2, 3])
    assert "unknown:Mystery(x) -> float_type, {2, 3}" in str(parse_onnx(model, skip_unknown_operators=True))


def test_debug_symbols_name_the_nodes() -> None:
    model, _ = single("Gemm", [normal(2, 3), normal(3, 4), normal(4)])
    model.graph.node[0].name = "fc1"
    program = parse_onnx(model, use_debug_symbols=True)
    assert {ins.debug_symbols for ins in program.main if ins.inputs and ins.name != "@return"} == {("fc1",)}
    assert all(not ins.debug_symbols for ins in parse_onnx(model).main)


def test_the_program_is_printed_when_reading_fails(capsys: pytest.CaptureFixture[str]) -> None:
    model = symbolic([helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Mystery", ["r"], ["y"])], [2])
    with pytest.raises(ValueError, match="Mystery"):
        parse_onnx(model, print_program_on_error=True)
    assert "relu(x) -> float_type, {2}, {1}" in capsys.readouterr().err


def dynamic_feeds(model: onnx.ModelProto, x: np.ndarray, **options: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = parse_onnx(model, **options)
    assert program.parameter_shapes()["x"].is_dynamic
    return run_program(program, {"x": x})[0]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_reshape_to_shape_derived_lengths_keeps_a_dynamic_batch(batch: int) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Gather", ["s", "zero"], ["b"], axis=0),
        helper.make_node("Constant", [], ["rest"], value_ints=[2, 6]),
        helper.make_node("Concat", ["b", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    x = normal(batch, 3, 4)
    y = dynamic_feeds(symbolic(nodes, ["batch", 3, 4]), x, dim_params={"batch": Dim(1, 8)})
    wide = np.exp(x.reshape(batch, 2, 6))
    np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_with_dynamic_batch(batch: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "k"], ["y"], transB=1),
    ]
    weights = {
        "w": normal(4, 2, 3, 3),
        "b": normal(4, seed=1),
        "v": np.abs(normal(4, seed=2)) + 1,
        "m": normal(5, 4, seed=3),
        "k": normal(5, seed=4),
    }
    model = symbolic(nodes, ["batch", 2, 6, 6], constants=weights)
    x = normal(batch, 2, 6, 6, seed=5)
    y = dynamic_feeds(model, x, default_dyn_dim_value=Dim(1, 4))
    fixed = run_program(parse_onnx(model, default_dim_value=batch), {"x": x})[0]
    np.testing.assert_allclose(y, fixed, rtol=1e-5, atol=1e-6)


def test_broadcasts_of_dynamic_values_take_their_lengths_from_each_other() -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], axes=[1]), helper.make_node("Sub", ["x", "m"], ["y"])]
    model = symbolic(nodes, ["batch", 4])
    x = normal(3, 4)
    y = dynamic_feeds(model, x, dim_params={"batch": Dim(1, 8)})
    np.testing.assert_allclose(y, x - x.mean(1, keepdims=True), atol=1e-6)


def test_what_needs_fixed_dimensions_waits_for_them() -> None:
    model = symbolic([helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2)], ["batch", 4, 2, 2])
    program = parse_onnx(model, default_dyn_dim_value=Dim(1, 4))
    assert "deferred:DepthToSpace" in str(program)
    x = normal(3, 4, 2, 2)
    assert run_program(program, {"x": x})[0].shape == (3, 1, 4, 4)


def test_inputs_that_had_to_be_constant_are_taken_at_run_time() -> None:
    x = normal(2, 3)
    model, feeds = single("Tile", [x, np.array([1, 2])])
    program = parse_onnx(model)
    np.testing.assert_array_equal(run_program(program, feeds)[0], np.tile(x, (1, 2)))
    np.testing.assert_array_equal(run_program(program, {**feeds, "x1": np.array([2, 1])})[0], np.tile(x, (2, 1)))


def test_model_comes_through_a_pipe() -> None:
    data = relu(2).SerializeToString()
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
        os.close(writing)
        assert str(parse_onnx(f"/dev/fd/{reading}")) == str(parse_onnx(data))
    finally:
        os.close(reading)
