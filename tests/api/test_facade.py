"""Arguments, errors and results of the public names, beyond the guides."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import mgx_numba as migraphx
from mgx_numba.errors import (
    CompileError,
    FormatError,
    OperatorError,
    OptionError,
    ParameterError,
    ParseError,
    ShapeError,
    ValidationError,
)

dynamic = migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 4), migraphx.dynamic_dimension(3, 3)])


def built(op: migraphx.op, **shape: Any) -> migraphx.program:
    """Return a one-operator program on the parameter ``x``."""
    net = migraphx.program()
    main = net.get_main_module()
    main.add_return([main.add_instruction(op, [main.add_parameter("x", migraphx.shape(**shape))])])
    return net


def test_compile_has_the_signature_of_migraphx() -> None:
    names = list(inspect.signature(migraphx.program.compile).parameters)
    assert names[:5] == ["self", "t", "offload_copy", "fast_math", "exhaustive_tune"]
    net = built(migraphx.op("relu"), lens=[3])
    net.compile(migraphx.get_target("ref"), True, False, False)
    assert net.compile_options is not None and net.compile_options.fast_math is False
    net.compile(migraphx.get_target("ref"), {"fast_math": True})
    assert net.compile_options.fast_math is True


@pytest.mark.parametrize("given", [[2.5], "ab", 3, [None]])
def test_lengths_must_be_integers(given: Any) -> None:
    with pytest.raises(ShapeError, match="lens must be a sequence of integers"):
        migraphx.shape(lens=given)


def test_dynamic_shape_has_bytes_and_no_elements() -> None:
    assert dynamic.bytes() == 4 * 3 * 4
    with pytest.raises(ShapeError, match=r"elements\(\) called on a dynamic shape: .*\}$"):
        dynamic.elements()


def test_no_values_for_a_dynamic_shape() -> None:
    for make in (migraphx.generate_argument, lambda s: migraphx.fill_argument(s, 1)):
        with pytest.raises(ShapeError, match="dynamic shape"):
            make(dynamic)
    with pytest.raises(ShapeError, match="dynamic shape"):
        migraphx.argument_from_pointer(dynamic, 64)


@pytest.mark.parametrize("address", [0, -8, "x", 1.5])
def test_address_must_be_positive(address: Any) -> None:
    with pytest.raises(ShapeError, match="address"):
        migraphx.argument_from_pointer(migraphx.shape(lens=[2]), address)


def test_address_of_any_integer_type() -> None:
    array = np.arange(3, dtype=np.float32)
    view = migraphx.argument_from_pointer(migraphx.shape(lens=[3]), np.int64(array.ctypes.data))
    assert view.tolist() == [0, 1, 2]


def test_values_that_are_no_numbers() -> None:
    with pytest.raises(ShapeError, match="must be numbers"):
        migraphx.create_argument(migraphx.shape(lens=[2]), ["a", "b"])


def test_bytes_are_a_buffer_of_uint8() -> None:
    assert str(migraphx.argument(b"abc").get_shape()) == "uint8_type, {3}, {1}"


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_foreign_byte_order_is_converted(target: str) -> None:
    net = built(migraphx.op("relu"), lens=[3]).compile(target)
    assert net.run({"x": np.array([1, 2, 3], np.dtype(np.float32).newbyteorder())})[0].tolist() == [1, 2, 3]


def test_add_instruction_says_what_it_needs() -> None:
    main = migraphx.program().get_main_module()
    x = main.add_parameter("x", migraphx.shape(lens=[2]))
    with pytest.raises(OperatorError, match="op must be an op, got 'relu'"):
        main.add_instruction("relu", [x])  # type: ignore[arg-type]
    for wrong in (["x"], x, [None]):
        with pytest.raises(OperatorError, match="args must be a list of instruction_ref"):
            main.add_instruction(migraphx.op("relu"), wrong)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="needs a name and a shape"):
        main.add_parameter("y", [2])  # type: ignore[arg-type]


def test_values_of_another_program_are_refused() -> None:
    foreign = migraphx.program().get_main_module().add_parameter("x", migraphx.shape(lens=[3]))
    net = migraphx.program()
    net.get_main_module().add_instruction(migraphx.op("relu"), [foreign])
    with pytest.raises(ValidationError, match="of another program"):
        net.compile("cpu")


def test_attributes_that_are_operators_and_ranges_are_plain() -> None:
    assert migraphx.op("lstm").values()["actv_func"][0] == {"name": "sigmoid", "operator": {}}


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_tuple_as_a_result(target: str) -> None:
    net = built(migraphx.op("topk", k=2, axis=0, largest=1), lens=[3])
    values, indices = net.compile(target).run({"x": np.array([1, 3, 2], np.float32)})[0]
    assert (values.tolist(), indices.tolist()) == ([3, 2], [1, 2])


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_results_have_the_output_shapes_and_memory_of_their_own(target: str) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(lens=[2, 3]))
    turned = main.add_instruction(migraphx.op("transpose", permutation=[1, 0]), [x])
    spread = main.add_instruction(migraphx.op("multibroadcast", out_lens=[2, 2, 3]), [x])
    main.add_return([turned, spread, x, main.add_literal(np.float32(3))])
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    net.compile(target)
    results = net.run({"x": array})
    assert [r.get_shape() for r in results] == net.get_output_shapes()
    assert str(results[3].get_shape()) == "float_type, {1}, {0}"
    for result in results:
        assert not np.shares_memory(result, array)
        np.asarray(result)[...] = -1
    assert net.run({"x": array})[3].tolist() == [3]
    assert net.run({"x": array})[2].tolist() == list(range(6))


def test_run_needs_a_mapping() -> None:
    net = built(migraphx.op("relu"), lens=[2])
    with pytest.raises(ParameterError, match="mapping of parameter names"):
        net.run(np.ones(2, np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [np.ones((2, 3), np.float32), np.float32(1), [1.0], (), "x", 3], ids=repr)
def test_run_of_open_lengths_needs_a_mapping_also_once_plans_are_kept(given: Any) -> None:
    net = migraphx.program()
    main = net.get_main_module()
    rows, columns = migraphx.shape.dynamic_dimension(1, 8), migraphx.shape.dynamic_dimension(3, 3)
    x = main.add_parameter("x", migraphx.shape(type="float", dyn_dims=[rows, columns]))
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    net.compile("cpu")
    for _ in range(2):
        net.run({"x": np.ones((2, 3), np.float32)})
        with pytest.raises(ParameterError, match=f"mapping of parameter names to arrays, got {type(given).__name__}"):
            net.run(given)


def test_trace_level_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_EVAL", "much")
    with pytest.raises(OptionError, match="MIGRAPHX_TRACE_EVAL: expected 0, 1, 2 or 3"):
        built(migraphx.op("relu"), lens=[2]).run({"x": np.ones(2, np.float32)})


def test_every_kernel_has_the_instructions_it_came_from() -> None:
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(lens=[8, 16]))
    w = main.add_literal(np.ones((16, 16), np.float32))
    first = main.add_instruction(migraphx.op("dot"), [x, w])
    main.add_return([main.add_instruction(migraphx.op("dot"), [first, w])])
    kernels = net.compile("cpu").kernels()
    assert kernels and all("dot" in kernel.origin for kernel in kernels)
    assert any(kernel.origin.count("dot(") == 2 for kernel in kernels)


def test_failed_compilation_leaves_the_program_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    net = built(migraphx.op("relu"), lens=[2])
    text = str(net)

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    from mgx_numba.api import compiling

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compile_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.compile("cpu")
    assert not net.is_compiled() and str(net) == text
    assert net.compile("cpu").run({"x": np.array([-1, 1], np.float32)})[0].tolist() == [0, 1]


@pytest.mark.parametrize("given", ["text", 5, None])
def test_buffer_must_be_bytes(given: Any) -> None:
    with pytest.raises(ParseError, match="needs the bytes of a model"):
        migraphx.parse_onnx_buffer(given)


def test_files_and_buffers_are_of_programs(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="save needs a program, got str"):
        migraphx.save(str(tmp_path / "model.mxr"), migraphx.program())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="save: filename must be a path, got NoneType"):
        migraphx.program().save(None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="save_buffer needs a program, got NoneType"):
        migraphx.save_buffer(None)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="load_buffer needs the bytes of an .mxr file, got str"):
        migraphx.load_buffer("model.mxr")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="the name of a module must be a string, got 3"):
        migraphx.program().create_module(3)  # type: ignore[arg-type]


def test_a_module_that_runs_itself_was_compiled() -> None:
    program = migraphx.program()
    main, inner = program.get_main_module(), program.create_module("inner")
    condition = main.add_literal(np.array(True))
    inner.add_return([inner.add_literal(np.float32(1))])
    branch = migraphx.op("if")
    with pytest.raises(OperatorError, match="module 'main' cannot run module 'main': it would run itself"):
        main.add_instruction(branch, [condition], [inner, main])
    main.add_instruction(branch, [condition], [inner, inner])
    with pytest.raises(OperatorError, match="module 'inner' cannot run module 'main': it would run itself"):
        inner.add_instruction(branch, [condition], [main, main])


def test_who_asks_for_lengths_that_a_model_leaves_open_is_told_of_the_option() -> None:
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }'
    program = migraphx.parse_onnx(onnx.parser.parse_model(text))
    for shape in (program.get_parameter_shapes()["x"], *program.get_output_shapes()):
        with pytest.raises(ShapeError, match=r"lens\(\) called on a dynamic shape: .*default_dim_value=1"):
            shape.lens()


def test_a_value_fills_an_argument() -> None:
    with pytest.raises(ShapeError, match=r"'x' cannot be an element of float_type, \{2\}, \{1\}"):
        migraphx.fill_argument(migraphx.shape(type="float", lens=[2]), "x")  # type: ignore[arg-type]
    assert migraphx.fill_argument(migraphx.shape(type="bf16", lens=[2], strides=[0]), 2.5).tolist() == [2.5, 2.5]


@pytest.mark.parametrize("given", [None, object(), (k for k in "ab")])
def test_what_is_no_array_was_called_no_str(given: Any) -> None:
    with pytest.raises(ShapeError, match=f"^{type(given).__name__} is neither an array nor a number nor str$"):
        migraphx.argument(given)


@pytest.mark.parametrize("given", ["n", 1.5, {"min": 1}])
def test_dimension_must_be_one(given: Any) -> None:
    with pytest.raises(OptionError, match="a dimension must be an integer"):
        migraphx.parse_onnx("model.onnx", dim_params={"n": given})


@pytest.mark.parametrize("mode", ["maximum", 7])
def test_enumeration_value_that_does_not_exist(mode: Any) -> None:
    with pytest.raises(OperatorError, match="mode must be one of average, max, lpnorm"):
        migraphx.op("pooling", mode=mode)


def test_unexpected_failure_of_a_lowering_names_its_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    from mgx_numba.targets.lowering.lowering import Lowering

    def fail(*args: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Lowering, "_lower", fail)
    with pytest.raises(CompileError, match="lowering x = @param:x.*KeyError"):
        built(migraphx.op("relu"), lens=[2]).compile("cpu")


@pytest.mark.parametrize(
    "array", [np.ones(2, np.float32), np.ones((3, 2), np.float32).T, np.broadcast_to(np.float32(1), (2, 2))]
)
def test_literal_is_a_copy_with_the_same_strides(array: np.ndarray) -> None:
    given = np.array(array, order="A") if array.flags.writeable else array
    net = migraphx.program()
    literal = net.get_main_module().add_literal(given)
    assert literal.shape() == migraphx.argument(array).get_shape()
    if given.flags.writeable:
        given[...] = 7
    assert set(net.run({})[0].tolist()) == {1.0}


def test_warning_of_an_option_without_effect_points_at_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    from mgx_numba.api import options

    monkeypatch.setattr(options, "warned", set())
    with pytest.warns(UserWarning, match="device_id=3 has no effect") as caught:
        built(migraphx.op("relu"), lens=[2]).compile("cpu", device_id=3)
    assert caught[0].filename == __file__


def test_value_of_a_literal_cannot_be_written() -> None:
    net = migraphx.program()
    literal = net.get_main_module().add_literal(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(literal.get_literal())[...] = 9
    assert net.run({})[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    "name, message",
    [
        ("to_cpu", "did you mean .*to_gpu"),
        ("parse_onx", "did you mean parse_onnx"),
        ("quantise_int8", "did you mean .*quantize_int8"),
        ("frobnicate", "no attribute 'frobnicate'$"),
    ],
)
def test_names_that_are_not_there_say_what_is_known_of_them(name, message):
    assert not hasattr(migraphx, name)
    with pytest.raises(AttributeError, match=message):
        getattr(migraphx, name)


@pytest.mark.parametrize(
    "name, message",
    [
        ("perf_report", "mgx-numba-driver perf"),
        ("get_parameter_name", "did you mean get_parameter_names"),
        ("frobnicate", "'program' object has no attribute 'frobnicate'$"),
        ("_private", "'program' object has no attribute '_private'"),
    ],
)
def test_methods_that_are_not_there_say_what_is(name, message):
    assert not hasattr(migraphx.program(), name)
    with pytest.raises(AttributeError, match=message):
        getattr(migraphx.program(), name)


def test_names_that_are_explained_are_not_there_in_fact():
    from mgx_numba.api import missing

    assert not set(missing.METHODS) & set(dir(migraphx.program))


def test_an_error_inside_of_a_program_is_not_taken_for_a_missing_method():
    def decode():
        raise AttributeError("from inside")

    broken = migraphx.program()
    broken._source.decode = decode
    with pytest.raises(AttributeError, match="from inside"):
        broken.get_parameter_names()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: migraphx.generate_argument([2]), ShapeError, r"a shape is needed, got \[2\]"),
        (lambda: migraphx.generate_argument(migraphx.shape(lens=[2]), "a"), OptionError, "seed must be an integer"),
        (lambda: migraphx.fill_argument(3, 1), ShapeError, "a shape is needed, got 3"),
        (lambda: migraphx.create_argument(None, [1]), ShapeError, "a shape is needed, got None"),
        (lambda: migraphx.argument_from_pointer((2,), 64), ShapeError, r"a shape is needed, got \(2,\)"),
        (lambda: migraphx.allocate_gpu([2]), ShapeError, r"a shape is needed, got \[2\]"),
        (lambda: migraphx.parse_onnx_buffer(b"", map_input_dims=[1]), OptionError, r"a mapping by name, got \[1\]"),
        (lambda: migraphx.parse_onnx_buffer(b"", dim_params=4), OptionError, "dim_params must be a mapping by name"),
        (lambda: migraphx.parse_onnx_buffer(b"", map_dyn_input_dims="x"), OptionError, "a mapping by name, got 'x'"),
        (lambda: migraphx.parse_tf("a.pb", map_input_dims="x"), OptionError, "a mapping by name, got 'x'"),
        (lambda: migraphx.optimize(3), OptionError, "a program is needed, got int"),
        (lambda: migraphx.shape.dynamic_dimension("a", 2), ShapeError, r"must be integers, got 'a', 2 and \(\)"),
        (lambda: migraphx.shape.dynamic_dimension(1, 2.5), ShapeError, "must be integers, got 1, 2.5"),
        (lambda: migraphx.shape.dynamic_dimension(1, 2, 3), ShapeError, "must be integers, got 1, 2 and 3"),
        (lambda: migraphx.fill_argument(migraphx.shape(type="uint8"), -1), ShapeError, "-1 cannot be an element"),
        (lambda: migraphx.op(3), OperatorError, "the name of an operator must be a str, got 3"),
        (lambda: migraphx.macro([]), OperatorError, r"the name of an operator must be a str, got \[\]"),
    ],
)
def test_arguments_of_other_kinds_are_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
