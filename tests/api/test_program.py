"""Building, printing and running programs through the public names."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx

from ..running import at_once


def guide_network() -> migraphx.program:
    """The network that MIGraphX's guides build by hand: convolution, slice, contiguous, flatten."""
    net = migraphx.program()
    main = net.get_main_module()
    data = main.add_parameter("input", migraphx.shape(type="float_type", lens=[1, 1, 4, 6]))
    kernel = main.add_literal(np.ones((1, 1, 1, 1), np.float32))
    op = migraphx.op("convolution", padding=[0, 0], stride=[1, 1], dilation=[1, 1], group=1, padding_mode=0)
    conv = main.add_instruction(op, [data, kernel])
    part = main.add_instruction(migraphx.op("slice", axes=[2, 3], starts=[0, 2], ends=[4, 5]), [conv])
    packed = main.add_instruction(migraphx.op("contiguous"), [part])
    flat = main.add_instruction(migraphx.op("flatten"), [packed])
    main.add_return([flat])
    return net


TEXT = """\
module: "main"
@0 = @literal{1} -> float_type, {1, 1, 1, 1}, {1, 1, 1, 1}
input = @param:input -> float_type, {1, 1, 4, 6}, {24, 24, 6, 1}
@2 = convolution[padding={0, 0},stride={1, 1},dilation={1, 1},group=1,padding_mode=0](input,@0) -> float_type, \
{1, 1, 4, 6}, {24, 24, 6, 1}
@3 = slice[axes={2, 3},starts={0, 2},ends={4, 5}](@2) -> float_type, {1, 1, 4, 3}, {24, 24, 6, 1}
@4 = contiguous(@3) -> float_type, {1, 1, 4, 3}, {12, 12, 3, 1}
@5 = flatten[axis=1](@4) -> float_type, {1, 12}, {12, 1}
@6 = @return(@5)

"""


def test_text_of_a_program_built_by_hand():
    assert str(guide_network()) == TEXT
    assert guide_network() == guide_network()


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_numbers_of_a_program_built_by_hand(target):
    net = guide_network()
    assert not net.is_compiled()
    net.compile(migraphx.get_target(target))
    assert net.is_compiled()
    result = net.run({"input": np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)})[0]
    assert result.get_shape().lens() == [1, 12]
    assert result.tolist() == [2, 3, 4, 8, 9, 10, 14, 15, 16, 20, 21, 22]


def test_program_runs_before_it_is_compiled_and_says_once_that_it_is_slow():
    net = guide_network()
    with pytest.warns(RuntimeWarning, match=r"not compiled.*target ref.*compile\(get_target\(\"cpu\"\)\)") as told:
        results = [net.run({"input": np.zeros((1, 1, 4, 6), np.float32)}) for _ in range(3)]
    assert len(told) == 1 and told[0].filename == __file__
    assert [r[0].tolist() for r in results] == [[0.0] * 12] * 3


def symbolic_model():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "symbolic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", None, 6])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("form", ["parsed", "compiled", "loaded"])
def test_a_wrong_length_of_an_open_dimension_names_symbol_and_options(form, tmp_path):
    net = migraphx.parse_onnx_buffer(symbolic_model(), default_dim_value=1)
    if form != "parsed":
        net.compile("cpu")
    if form == "loaded":
        net.save(tmp_path / "net.mxr")
        net = migraphx.load(tmp_path / "net.mxr")
    with pytest.raises(migraphx.MgxError) as told:
        net.run({"x": np.zeros((4, 2, 6), np.float32)})
    text = str(told.value)
    assert text.startswith("Incorrect shape {float_type, {4, 2, 6}, {12, 6, 1}} for parameter: x should be: {float_")
    assert "dimension 0 ('batch') was read as 1, dimension 1 was read as 1" in text
    assert "dim_params={'batch': 4}, map_input_dims={'x': [4, 2, 6]}" in text
    assert "map_dyn_input_dims={'x': [dynamic_dimension(1, 4), dynamic_dimension(1, 2), 6]}" in text
    scope = {"dynamic_dimension": migraphx.dynamic_dimension}
    for option in re.findall(r"map_\w+=\{.*?\]\}", text):
        again = migraphx.parse_onnx_buffer(symbolic_model(), **eval(f"dict({option})", scope)).compile("cpu")
        assert again.run({"x": np.ones((4, 2, 6), np.float32)})[0].shape == (4, 2, 6)
    with pytest.raises(migraphx.MgxError, match=r"\{1, 1, 6\}, \{6, 6, 1\}\}$"):
        net.run({"x": np.zeros((1, 1, 5), np.float32)})


def test_a_wrong_type_is_called_a_type_and_says_how_to_convert():
    net = guide_network().compile("cpu")
    given = np.zeros((1, 1, 4, 6))
    with pytest.raises(migraphx.MgxError, match=r"^Incorrect type \{double.*; convert it.* by \.astype\('float32'\)$"):
        net.run({"input": given})
    with pytest.raises(migraphx.MgxError, match=r"^Incorrect type and shape \{int8.*; convert it"):
        net.run({"input": np.zeros((2, 1, 4, 6), np.int8)})
    assert net.run({"input": given.astype("float32")})


def test_a_dynamic_program_tells_type_and_range():
    dims = {"x": [migraphx.dynamic_dimension(1, 4), 1, 6]}
    net = migraphx.parse_onnx_buffer(symbolic_model(), map_dyn_input_dims=dims).compile("cpu")
    with pytest.raises(migraphx.MgxError, match=r"^Incorrect type \{half_type.*should be: \{dynamic.*\[1\.\.4\]"):
        net.run({"x": np.zeros((2, 1, 6), np.float16)})
    with pytest.raises(migraphx.MgxError, match=r"^Incorrect shape .*\{5, 1, 6\}.*\[1\.\.4\], 1, 6\}\}$"):
        net.run({"x": np.zeros((5, 1, 6), np.float32)})


@pytest.mark.parametrize("target", ["cpu", "ref", None])
def test_operators_that_are_not_known_are_told_by_compile(target):
    nodes = [("Frobnicate", "x", "a"), ("Relu", "a", "b"), ("Frobnicate", "b", "c"), ("Wobble", "c", "y")]
    graph = helper.make_graph(
        [helper.make_node(op, [i], [o]) for op, i, o in [*nodes, ("Dead", "x", "z")]],
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    net = migraphx.parse_onnx(model, skip_unknown_operators=True)
    with pytest.raises(migraphx.MgxError, match=r"not known: Frobnicate \(2 times\), Wobble; .*skip_unknown_operators"):
        net.run({"x": np.zeros(2, np.float32)}) if target is None else net.compile(target)
    graph.output[0].name = "b"
    graph.node[0].op_type = "Neg"
    net = migraphx.parse_onnx(helper.make_model(graph, opset_imports=model.opset_import), skip_unknown_operators=True)
    net.compile(target)  # what no result needs is no obstacle
    assert net.run({"x": np.float32([-1, 1])})[0].tolist() == [1, 0]


def test_saving_into_a_missing_folder_names_the_folder(tmp_path):
    with pytest.raises(migraphx.MgxError, match=f"cannot be written: there is no folder {tmp_path / 'no'}$"):
        guide_network().save(tmp_path / "no" / "net.mxr")


def test_run_says_which_parameter_is_wrong():
    net = guide_network()
    net.compile(migraphx.get_target("cpu"))
    with pytest.raises(migraphx.MgxError, match=r"Parameter not found: input \(given: inputs; expected: input\)"):
        net.run({"inputs": np.zeros((1, 1, 4, 6), np.float32)})
    with pytest.raises(migraphx.MgxError, match=r"Incorrect shape .*\{1, 4, 6\}.* input should be: .*\{1, 1, 4, 6\}"):
        net.run({"input": np.zeros((1, 4, 6), np.float32)})
    with pytest.raises(migraphx.MgxError, match="double_type.* for parameter: input should be: .*float_type"):
        net.run({"input": np.zeros((1, 1, 4, 6))})
    with pytest.raises(migraphx.MgxError, match="Incorrect type and shape .*string_type.* for parameter: input"):
        net.run({"input": np.array(["a"])})
    with pytest.raises(migraphx.MgxError, match=r"parameter input: element \[1\] is of type dict, expected str"):
        net.run({"input": np.array(["a", {}], object)})


@pytest.mark.parametrize("given", [np.zeros((4, 16), np.float32), [np.zeros((4, 16), np.float32)]])
def test_an_array_where_a_mapping_is_meant_after_a_run_that_left_a_plan(given):
    """NumPy raised an IndexError."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 64), 16]))
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    net.compile(migraphx.get_target("cpu"))
    net.run({"x": np.zeros((4, 16), np.float32)})
    with pytest.raises(migraphx.MgxError, match="run needs a mapping of parameter names to arrays, got"):
        net.run(given)


def test_inputs_of_any_strides():
    net = guide_network()
    net.compile(migraphx.get_target("cpu"))
    values = np.arange(48, dtype=np.float32).reshape(1, 1, 4, 12)
    dense = net.run({"input": np.ascontiguousarray(values[..., ::2])})[0]
    assert net.run({"input": values[..., ::2]})[0] == dense
    assert net.run({"input": migraphx.argument(values[..., ::2])})[0] == dense


def test_quick_and_general_ways_give_the_same():
    net = guide_network()
    net.compile(migraphx.get_target("cpu"))
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    for given in (x, strided, migraphx.argument(x), migraphx.argument(strided)) * 2:
        (result,) = net.run({"input": given})
        assert type(result) is migraphx.argument and result.shape == (1, 12)
        assert result.get_shape() == net.get_output_shapes()[0]
        assert result == migraphx.argument(x[:, :, :, 2:5].reshape(1, 12))


def test_scalar_results_keep_their_shape():
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[1], strides=[0]))
    y = main.add_parameter("y", migraphx.shape(type="float_type", lens=[4]))
    main.add_return([main.add_instruction(migraphx.op(name), [v]) for name, v in (("neg", x), ("neg", y), ("abs", x))])
    before = [shape.strides() for shape in net.get_output_shapes()]
    net.compile(migraphx.get_target("cpu"))
    for given in (np.float32(3), np.full((1,), 3, np.float32), np.full((1,), 3, np.float32)):
        results = net.run({"x": given, "y": np.ones(4, np.float32)})
        assert [result.get_shape().strides() for result in results] == before
        assert [result.tolist() for result in results] == [[-3.0], [-1.0] * 4, [3.0]]


def test_many_threads_run_one_program():
    net = guide_network()
    net.compile(migraphx.get_target("cpu"))

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(125):
            x = rng.standard_normal((1, 1, 4, 6)).astype(np.float32)
            got = net.run({"input": x})[0]
            assert np.array_equal(got, x[:, :, :, 2:5].reshape(1, 12))

    at_once(work, range(8))


def test_failed_compile_leaves_the_program_usable():
    net = guide_network()
    with pytest.raises(migraphx.MgxError):
        net.compile(migraphx.get_target("cpu"), disabled_passes=["no such pass"])
    assert not net.is_compiled()
    net.compile(migraphx.get_target("cpu"))
    assert net.run({"input": np.ones((1, 1, 4, 6), np.float32)})[0].tolist() == [1.0] * 12


def test_shape_has_migraphx_flags():
    assert migraphx.shape(type="int64_t", lens=[2, 3]).strides() == [3, 1]
    assert repr(migraphx.shape(lens=[2, 3], permutation=[1, 0])) == "float_type, {2, 3}, {1, 2}"
    assert migraphx.shape(lens=[2, 3], permutation=[1, 0]).transposed()
    assert migraphx.shape(lens=[2, 3], strides=[0, 1]).broadcasted()
    assert migraphx.shape(lens=[1], strides=[0]).scalar()
    dynamic = migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 4), migraphx.dynamic_dimension(3, 3)])
    assert repr(dynamic) == "dynamic, float_type, {[1..4], 3}" and dynamic.dynamic()
    with pytest.raises(migraphx.MgxError, match="lens.. called on a dynamic shape"):
        dynamic.lens()


def test_argument_is_a_buffer_an_array_and_a_dlpack_exporter():
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    argument = migraphx.argument(source)
    assert argument.data_ptr() == source.__array_interface__["data"][0]
    assert memoryview(argument).shape == (2, 3)
    np.testing.assert_array_equal(np.from_dlpack(argument), source)
    np.testing.assert_allclose(argument, source)
    assert argument.tolist() == source.ravel().tolist()
    again = migraphx.argument_from_pointer(argument.get_shape(), argument.data_ptr())
    assert again == argument
    source[0, 0] = 7
    assert again.tolist()[0] == 7


def test_generated_arguments_are_those_of_migraphx():
    assert migraphx.generate_argument(migraphx.shape(lens=[4])).tolist() == [0.4375, 0.75, 0.1875, 0.25]
    long = migraphx.generate_argument(migraphx.shape(type="int32_type", lens=[9000]))
    assert long.tolist()[:4] == migraphx.generate_argument(migraphx.shape(type="int32_type", lens=[4])).tolist()
    assert migraphx.fill_argument(migraphx.shape(lens=[2]), 3).tolist() == [3, 3]
    with pytest.raises(migraphx.MgxError, match="Values and shape elements do not match"):
        migraphx.create_argument(migraphx.shape(lens=[2]), [1.0])


def test_operators_say_their_attributes():
    assert migraphx.op("leaky_relu").values() == {"alpha": pytest.approx(0.01)}
    assert migraphx.op("pooling", mode=migraphx.op.pooling_mode.max).values()["mode"] == 1
    with pytest.raises(migraphx.MgxError, match="no attribute 'alfa'"):
        migraphx.op("leaky_relu", alfa=1.0)
    with pytest.raises(migraphx.MgxError, match="did you mean relu"):
        migraphx.op("relo")


def test_a_dynamic_program_has_one_plan_for_all_lengths():
    """The program kept a plan for each of the last lengths; new lengths took milliseconds and memory."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(0, 64), 2]))
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    net.compile(migraphx.get_target("cpu"))
    kernels = net.kernels()
    for length in (*range(65), 1):
        assert net.run({"x": np.ones((length, 2), np.float32)})[0].get_shape().lens() == [length, 2]
    assert len(net.compiled.own_plans()) == 1
    assert net.kernels() == kernels


def test_recompiling_with_fewer_results_forgets_the_places_of_the_old_results():
    program = migraphx.program()
    main = program.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[4]))
    relu, negated = (main.add_instruction(migraphx.op(name), [x]) for name in ("relu", "neg"))
    main.add_return([relu, negated])
    cpu = migraphx.get_target("cpu")
    program.compile(cpu)
    given, memory = {"x": np.arange(-2, 2, dtype=np.float32)}, np.empty(4, np.float32)
    program.run(given, {"output_1": memory})
    np.testing.assert_array_equal(memory, -given["x"])
    main.replace_return([negated])
    program.compile(cpu)
    program.run(given, {"output_0": memory})
    np.testing.assert_array_equal(memory, -given["x"])
    with pytest.raises(migraphx.MgxError, match="output_1"):
        program.run(given, {"output_1": memory})


def test_a_dynamic_program_enters_its_plan_at_once():
    """The direct entry of static programs serves every length."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 8), 3]))
    main.add_return([main.add_instruction(migraphx.op("neg"), [x])])
    net.compile(migraphx.get_target("cpu"))

    def run(length):
        given = np.full((length, 3), length, np.float32)
        assert np.asarray(net.run({"x": given})[0]).tolist() == (-given).tolist()
        return net._form.fast_path

    run(2)
    run(2)
    (plan,) = net.compiled.symbolic_plans
    entry = plan.direct(migraphx.argument)
    assert entry is not None
    assert all(run(length) is entry for length in (2, 5, 2, 8, 1))


def test_dynamic_program_on_lengths_that_change_and_stay():
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(dyn_dims=[migraphx.dynamic_dimension(1, 8), 3]))
    main.add_return([main.add_instruction(migraphx.op("neg"), [x])])
    net.compile(migraphx.get_target("cpu"))
    for length in (2, 2, 2, 5, 2, 5, 5, 5):
        given = np.arange(length * 3, dtype=np.float32).reshape(length, 3) + 1
        np.testing.assert_array_equal(net.run({"x": given})[0], -given)
    with pytest.raises(migraphx.MgxError, match="Incorrect shape .* x should be: "):
        net.run({"x": np.ones((9, 3), np.float32)})


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_inputs_of_open_lengths_may_lie_in_any_way(target):
    net = migraphx.program()
    main = net.get_main_module()
    dims = [migraphx.dynamic_dimension(0, 8), migraphx.dynamic_dimension(3, 3)]
    x = main.add_parameter("x", migraphx.shape(dyn_dims=dims))
    main.add_return([main.add_instruction(migraphx.op("exp"), [x])])
    net.compile(migraphx.get_target(target))
    values = np.arange(48, dtype=np.float32).reshape(16, 3) / 16
    one = np.float32(0.5)
    ways = [
        values[:4], values[4::-1], values[::2], np.asfortranarray(values[:5]), values[:5].astype(">f4"), values[:0],
        np.broadcast_to(one, (5, 3)), np.broadcast_to(one, (1, 3)),
    ]  # fmt: skip
    for given in ways:
        np.testing.assert_allclose(net.run({"x": given})[0], np.exp(given), rtol=1e-5)
    for wrong in (values[:9], values[:4, :2], values[0], values[:4, :, None], np.float32(1), values[:4].astype(int)):
        with pytest.raises(migraphx.MgxError, match=r"(?s)x.*(shape|type)"):
            net.run({"x": wrong})


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_bytes_were_taken_for_pairs_of_nibbles_by_the_native_call(target):
    """An argument says its element type; only a plain array of bytes may be either."""
    pairs, plain = (migraphx.shape(type=f"{name}_type", lens=[2, 4]) for name in ("fp4x2", "uint8"))
    net = migraphx.program()
    main = net.get_main_module()
    x, y = main.add_parameter("x", pairs), main.add_parameter("y", plain)
    main.add_return([x, main.add_instruction(migraphx.op("add"), [y, y])])
    net.compile(migraphx.get_target(target))
    values = np.arange(8, dtype=np.uint8).reshape(2, 4)
    nibbles, numbers = migraphx.generate_argument(pairs), migraphx.argument(values)
    for _ in range(3):  # the first call goes the general way
        for given in (values, nibbles):
            for other in (values, numbers):
                same, doubled = net.run({"x": given, "y": other})
                assert same.get_shape() == pairs and doubled.get_shape() == plain
                np.testing.assert_array_equal(same, np.asarray(given))
                np.testing.assert_array_equal(doubled, 2 * values)
        with pytest.raises(migraphx.MgxError, match="uint8_type.* for parameter: x should be: .fp4x2_type"):
            net.run({"x": numbers, "y": values})
        with pytest.raises(migraphx.MgxError, match="fp4x2_type.* for parameter: y should be: .uint8_type"):
            net.run({"x": values, "y": nibbles})
        assert net.run({"x": same, "y": doubled})[0].get_shape() == pairs


@pytest.mark.parametrize("target", [None, "ref", "cpu"])
def test_asynchronous_runs_are_complete_on_return(target):
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[3, 4]))
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    if target is not None:
        net.compile(migraphx.get_target(target))
    given = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        (result,) = net.run_async({"x": given, "other": 1}, 0, "ihipStream_t")
        assert isinstance(result, migraphx.argument)
        np.testing.assert_array_equal(result, np.maximum(given, 0))
    for stream, name in ((None, "ihipStream_t"), (-1, "ihipStream_t"), (True, "ihipStream_t"), (0, None)):
        with pytest.raises(migraphx.MgxError, match="run_async: stream"):
            net.run_async({"x": given}, stream, name)
    with pytest.raises(migraphx.MgxError, match="Parameter not found: x"):
        net.run_async({}, 0, "ihipStream_t")


def test_what_a_console_or_notebook_shows_is_short() -> None:
    program = migraphx.program()
    main = program.get_main_module()
    x = main.add_parameter("x<y", migraphx.shape(type="float", lens=[100, 100]))
    main.add_return([main.add_instruction(migraphx.op("neg"), [x])])
    assert repr(program) == "<program of 1 instructions, inputs x<y, not compiled; print() shows it>"
    program.compile(migraphx.get_target("cpu"))
    assert "compiled for cpu" in repr(program) and "@return" in str(program) and "\n" not in repr(program)
    page = program._repr_html_()
    assert "x&lt;y" in page and "x<y" not in page and "@return" in page
    (result,) = program.run({"x<y": np.ones((100, 100), np.float32)})
    assert repr(result).startswith("argument([[-1., -1., -1., ..., -1., -1., -1.],\n")
    assert repr(result).endswith("float_type, {100, 100}, {100, 1})") and len(repr(result)) < 1000
