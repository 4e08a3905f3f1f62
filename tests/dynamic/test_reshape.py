"""``program.reshape``: dimensions of dynamic inputs narrowed after reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mgx_numba as migraphx
from mgx_numba.api.program import program as public_program
from mgx_numba.errors import OptionError, ParameterError
from mgx_numba.frontends.onnx import parse_onnx

from .models import MODELS


def test_lengths_given_later_are_as_if_given_when_reading() -> None:
    case = MODELS["encoder"]()
    feeds = case.draw(np.random.default_rng(5))
    program = public_program.wrap(parse_onnx(case.model)).compile("ref")
    (wanted,) = program.run(feeds)
    dims = {name: array.shape for name, array in feeds.items()}
    assert program.reshape(dims) is program and not program.is_compiled()
    shapes = program.get_parameter_shapes()
    assert not any(shapes[name].dynamic() for name in dims)
    assert "deferred" not in str(program) and "dimensions_of" not in str(program)
    for target in ("ref", "cpu"):
        (result,) = program.clone().compile(target).run(feeds)
        np.testing.assert_allclose(np.asarray(result), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_ranges_are_narrowed() -> None:
    case = MODELS["shuffle_net"]()
    program = public_program.wrap(parse_onnx(case.model))
    batch = migraphx.dynamic_dimension(1, 8, {4})
    program.reshape({"x": [batch, 4, 5, 6]})
    assert str(program.get_parameter_shapes()["x"]) == "dynamic, float_type, {[1..8, {4}], 4, 5, 6}"
    x = np.ones((3, 4, 5, 6), np.float32)
    assert program.compile("ref").run({"x": x})[0].shape == (3, 5)
    program.reshape({"x": [2, 4, 5, 6]})
    assert program.compile("ref").run({"x": x[:2]})[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"y": [1]}, "reshape names 'y', which is no input; inputs are: x"),
        ({"x": [1, 4, 5]}, "'x' has 4 dimensions, got 3"),
        ({"x": [1, 5, 5, 5]}, "dimension 1 of 'x' is 4, which does not hold 5"),
        ({"x": 3}, "needs a list of dimensions, got 3"),
    ],
)
def test_dimensions_that_cannot_be(dims: dict, message: str) -> None:
    program = public_program.wrap(parse_onnx(MODELS["shuffle_net"]().model))
    with pytest.raises(OptionError, match=message):
        program.reshape(dims)


def test_model_is_read_again_for_lengths_up_to_the_first(tmp_path: Path) -> None:
    onnx.save(MODELS["shuffle_net"]().model, tmp_path / "net.onnx")
    longest = {"x": [4, 4, 6, 6]}

    def parsed() -> migraphx.program:
        return migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims=longest)

    program = parsed().compile("cpu", num_threads=1)
    for lens in ([2, 4, 3, 5], [4, 4, 6, 6], [1, 4, 1, 1]):  # also longer ones than the last
        assert program.reshape({"x": lens}).is_compiled()
        x = np.random.default_rng(1).standard_normal(lens).astype(np.float32)
        wanted = migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims={"x": lens}).compile("ref").run({"x": x})
        np.testing.assert_allclose(program.run({"x": x})[0], wanted[0], rtol=1e-5, atol=1e-6)
    for dims, message in (
        ({"x": [5, 4, 6, 6]}, r"parsed for at most \[4, 4, 6, 6\], which does not hold \[5, 4, 6, 6\]"),
        ({"x": [2, 4, 6]}, r"does not hold \[2, 4, 6\]"),
        ({"x": 3}, "needs a list of dimensions, got 3"),
        ({"y": [1]}, "reshape names 'y', which is no input; inputs are: x"),
    ):
        with pytest.raises(OptionError, match=message):
            program.reshape(dims)
    changed = parsed()
    migraphx.quantize_fp16(changed)
    with pytest.raises(OptionError, match="the program, or the model's file, was changed after it was parsed"):
        changed.reshape({"x": [1, 4, 1, 1]})
    x = np.ones([2, 4, 6, 6], np.float32)
    hint = r"dimension 0 is fixed at 4: program.reshape\({'x': \[2, 4, 6, 6\]}\) changes that, .*map_input_dims={'x': "
    with pytest.raises(ParameterError, match=hint + r"\[4, 4, 6, 6\]"):
        parsed().compile("ref").run({"x": x})
    assert parsed().clone().reshape({"x": [2, 4, 6, 6]}).compile("ref").run({"x": x})[0].shape[0] == 2


def test_model_in_memory_is_read_again_only_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    model, longest, dims = MODELS["shuffle_net"]().model, {"x": [4, 4, 6, 6]}, {"x": [2, 4, 6, 6]}
    with pytest.raises(OptionError, match="dimension 0 of 'x' is 4, which does not hold 2; .* MIGRAPHX_DYNAMIC_SHAPE"):
        migraphx.parse_onnx(model, map_input_dims=longest).reshape(dims)
    monkeypatch.setenv("MIGRAPHX_DYNAMIC_SHAPE", "1")
    program = migraphx.parse_onnx(model, map_input_dims=longest).reshape(dims)
    assert program.get_parameter_shapes()["x"].lens() == dims["x"]


def test_fixed_batch_of_a_model_becomes_another_by_options(tmp_path: Path) -> None:
    model = MODELS["shuffle_net"]().model
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "net.onnx")
    x = np.ones([8, 4, 6, 6], np.float32)
    with pytest.raises(ParameterError, match=r"program.reshape\(.*map_input_dims={'x': \[8, 4, 6, 6\]}"):
        migraphx.parse_onnx(tmp_path / "net.onnx", map_dyn_input_dims={"x": [1, 4, 6, 6]}).compile("ref").run({"x": x})
    with pytest.raises(OptionError, match="does not hold 8; parse_onnx of a file with map_input_dims={'x': "):
        migraphx.parse_onnx(tmp_path / "net.onnx").reshape({"x": x.shape})
    program = migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims={"x": x.shape})
    for batch in (1, 8, 3):
        assert program.reshape({"x": [batch, 4, 6, 6]}).compile("ref").run({"x": x[:batch]})[0].shape[0] == batch


def test_inputs_are_read_again_and_narrowed_together(tmp_path: Path) -> None:
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = [info("a", 1, ["n", 4]), info("b", 1, [4, "k"])]
    graph = onnx.helper.make_graph([node], "g", inputs, [info("y", 1, ["n", "k"])])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    program = migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims={"a": [8, 4]})
    program.reshape({"b": [4, migraphx.dynamic_dimension(1, 6)]}).reshape({"a": [2, 4], "b": [4, 3]})
    program.reshape({"a": [5, 4]})
    shapes = {name: shape.lens() for name, shape in program.get_parameter_shapes().items()}
    assert shapes == {"a": [5, 4], "b": [4, 3]}
    with pytest.raises(OptionError, match="dimension 1 of 'b' is 3, which does not hold 4"):
        program.reshape({"a": [6, 4], "b": [4, 4]})
    assert program.get_parameter_shapes()["a"].lens() == [5, 4]
