"""Graphs: constants and weights, folding, functions, subgraphs, and the text of the emitted program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.api.program import program as public_program
from mgx_numba.errors import MgxError, ParseError, UnsupportedError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.ops import control

from ..values import normal
from .onnx_cases import run_program
from .support import FLOAT, INT64, assert_like_onnxruntime, ints, make_model, run, single, value_info


def ops(program: Program) -> list[str]:
    return [ins.name for ins in program.main if not ins.name.startswith("@")]


def test_convolution_and_bias_print_as_in_migraphx() -> None:
    model, _ = single("Conv", [normal(1, 3, 4, 4), normal(2, 3, 3, 3), normal(2)], pads=[1, 1, 1, 1])
    assert str(parse_onnx(model)) == (
        'module: "main"\n'
        "x2 = @param:x2 -> float_type, {2}, {1}\n"
        "x1 = @param:x1 -> float_type, {2, 3, 3, 3}, {27, 9, 3, 1}\n"
        "x0 = @param:x0 -> float_type, {1, 3, 4, 4}, {48, 16, 4, 1}\n"
        "@3 = convolution[padding={1, 1},stride={1, 1},dilation={1, 1},group=1,padding_mode=0](x0,x1)"
        " -> float_type, {1, 2, 4, 4}, {32, 16, 4, 1}\n"
        "@4 = broadcast[axis=1,out_lens={1, 2, 4, 4},out_dyn_dims={}](x2)"
        " -> float_type, {1, 2, 4, 4}, {0, 1, 0, 0}\n"
        "@5 = add(@3,@4) -> float_type, {1, 2, 4, 4}, {32, 16, 4, 1}\n"
        "@6 = @return(@5)\n\n"
    )


@pytest.mark.parametrize(
    ("op_type", "lens", "attributes", "expected"),
    [
        ("Add", [(2, 3), (3,)], {}, ["multibroadcast", "add"]),
        ("Gemm", [(2, 3), (3, 4), (4,)], {}, ["dot", "multibroadcast", "add"]),
        (
            "BatchNormalization",
            [(1, 3, 2), (3,), (3,), (3,), (3,)],
            {},
            "unsqueeze unsqueeze unsqueeze unsqueeze multibroadcast add rsqrt multibroadcast sub"
            " mul multibroadcast mul multibroadcast add".split(),
        ),
        (
            "LayerNormalization",
            [(2, 4), (4,)],
            {},
            "reduce_mean multibroadcast sub multibroadcast sqdiff reduce_mean multibroadcast add rsqrt"
            " multibroadcast mul multibroadcast mul".split(),
        ),
        ("Softmax", [(2, 3)], {}, ["softmax"]),
        ("GlobalAveragePool", [(1, 2, 3, 3)], {}, ["pooling"]),
        ("Gelu", [(2, 3)], {}, "multibroadcast mul erf multibroadcast mul multibroadcast add mul".split()),
        ("LSTM", [(2, 1, 3), (1, 8, 3), (1, 8, 2)], {"hidden_size": 2}, ["undefined"] * 5 + ["lstm"]),
        ("Attention", [(1, 2, 3, 4)] * 3, {"is_causal": 1}, ["attention"]),
    ],
)
def test_operators_become_migraphx_primitives(
    op_type: str, lens: list[tuple[int, ...]], attributes: dict[str, int], expected: list[str]
) -> None:
    model, _ = single(op_type, [normal(*n) for n in lens], opset=23, **attributes)
    assert ops(parse_onnx(model)) == expected


def test_shape_computations_fold() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "a", "b"], ["head"]),
        helper.make_node("ReduceProd", ["s"], ["all"], keepdims=0),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Div", ["all", "n"], ["rest"]),
        helper.make_node("Unsqueeze", ["rest", "axis"], ["tail"]),
        helper.make_node("Concat", ["head", "tail"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"a": ints(0), "b": ints(1), "zero": np.array(0), "axis": ints(0)}
    model = make_model(nodes, {"x": normal(4, 3, 5)}, {"y": FLOAT}, constants=constants)
    assert parse_onnx(model).output_shapes()[0].lens == (4, 15)


def test_constant_of_shape_is_one_element_broadcast() -> None:
    model, _ = single("ConstantOfShape", [ints(1 << 16, 1 << 16)], constant=[0])
    program = parse_onnx(model)
    assert ops(program) == ["multibroadcast"]
    assert str(program.output_shapes()[0]) == "float_type, {65536, 65536}, {0, 0}"


def test_weights_borrow_the_memory_of_the_bytes() -> None:
    weights = {f"w{k}": normal(64, 64, seed=k) for k in range(24)}
    nodes = [helper.make_node("Sum", [*weights], ["y"])]
    data = make_model(nodes, {}, {"y": FLOAT}, constants=weights).SerializeToString()
    program = parse_onnx(data)
    base = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    places = [ins.literal.data_ptr for ins in program.main if ins.literal is not None]
    assert any(base <= place < base + len(data) for place in places)
    assert all(place % 4 == 0 for place in places)
    np.testing.assert_allclose(run_program(program, {})[0], sum(weights.values()), rtol=1e-5, atol=1e-5)


def test_files_bytes_and_messages_give_the_same_program(tmp_path: Path) -> None:
    model, feeds = single("Conv", [normal(1, 8, 6, 6), normal(16, 8, 3, 3)], constant=[1])
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    programs = [parse_onnx(s) for s in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), model)]
    results = [run_program(p, feeds)[0] for p in programs]
    assert all(p == programs[0] for p in programs)
    assert all(np.array_equal(r, results[0]) for r in results)


def test_external_data_is_read_at_its_offset(tmp_path: Path) -> None:
    model, feeds = single("MatMul", [normal(2, 64), normal(64, 64)], constant=[1])
    expected = run(model, feeds)[0]
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert np.array_equal(run_program(parse_onnx(tmp_path / "m.onnx"), feeds)[0], expected)
    data = (tmp_path / "m.onnx").read_bytes()
    program = parse_onnx(data, external_data_path=str(tmp_path))
    assert np.array_equal(run_program(program, feeds)[0], expected)


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (TensorProto.FLOAT16, [1.5, -2.0]),
        (TensorProto.BFLOAT16, [1.5, -2.0]),
        (TensorProto.INT8, [1, -2]),
        (TensorProto.BOOL, [1, 0]),
        (TensorProto.UINT64, [1, 2]),
        (TensorProto.DOUBLE, [1.5, 2]),
        (TensorProto.INT4, [3, -4, 7]),
        (TensorProto.UINT4, [3, 14, 7]),
        (TensorProto.FLOAT8E5M2, [1.5, -2.0]),
        (TensorProto.FLOAT4E2M1, [1.5, -6.0, 0.5]),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_element_types_are_decoded_from_fields_and_raw_data(number: int, values: list[float], raw: bool) -> None:
    tensor = helper.make_tensor("c", number, [len(values)], values)
    if raw:
        tensor = numpy_helper.from_array(numpy_helper.to_array(tensor), "c")
    model = make_model([helper.make_node("Identity", ["c"], ["y"])], {}, {"y": number}, opset=23)
    model.graph.initializer.append(tensor)
    result = run(model, {})[0]
    np.testing.assert_array_equal(result.astype(np.float64), np.array(values, np.float64))


def test_sparse_initializers_become_dense() -> None:
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(ints(1, 3), "i"), [2, 2])
    model = make_model([helper.make_node("Neg", ["w"], ["y"])], {}, {"y": FLOAT})
    model.graph.sparse_initializer.append(sparse)
    assert run(model, {})[0].tolist() == [[0, -5], [0, -7]]


def test_functions_of_the_model_take_attributes_and_defaults() -> None:
    scale = helper.make_node("Constant", [], ["k"])
    scale.attribute.add(name="value_float", type=1, ref_attr_name="factor")
    leaky = helper.make_node("LeakyRelu", ["scaled"], ["b"])
    leaky.attribute.add(name="alpha", type=1, ref_attr_name="slope")
    body = [scale, helper.make_node("Mul", ["a", "k"], ["scaled"]), leaky]
    function = helper.make_function(
        "own",
        "Scaled",
        ["a"],
        ["b"],
        body,
        [helper.make_opsetid("", 17)],
        attributes=["factor"],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    nodes = [
        helper.make_node("Scaled", ["x"], ["h"], domain="own", factor=-2.0),
        helper.make_node("Scaled", ["h"], ["y"], domain="own", factor=1.0, slope=0.25),
    ]
    model = make_model(nodes, {"x": normal(3)}, {"y": FLOAT}, functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    x = np.array([1, -1, 2], np.float32)
    assert run(model, {"x": x})[0].tolist() == [-0.25, 2.0, -0.5]


def branch(name: str, op_type: str, value: str) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(f"{name}_out", FLOAT, None)
    return helper.make_graph([helper.make_node(op_type, ["x", value], [f"{name}_out"])], name, [], [output])


def if_model(constant: bool) -> onnx.ModelProto:
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("yes", "Add", "w"), else_branch=branch("no", "Mul", "w")
    )
    condition = np.array(True)
    feeds = {"x": normal(2, 3)} if constant else {"x": normal(2, 3), "c": condition}
    constants = {"w": normal(2, 3, seed=1)} | ({"c": condition} if constant else {})
    return make_model([node], feeds, {"y": FLOAT}, constants=constants)


def test_a_constant_condition_leaves_one_branch() -> None:
    assert ops(parse_onnx(if_model(constant=True))) == ["add"]


@pytest.mark.parametrize("condition", [True, False])
def test_branches_become_modules_that_capture_outer_values(condition: bool) -> None:
    program = parse_onnx(if_model(constant=False))
    assert [m.name for m in program.reachable_modules()] == ["main", "If_0_if", "If_0_else"]
    x, w = normal(2, 3), normal(2, 3, seed=1)
    result = run_program(program, {"x": x, "c": np.array(condition)})[0]
    np.testing.assert_array_equal(result, x + w if condition else x * w)


def loop_model(trips: int | None) -> onnx.ModelProto:
    """Carries a doubling value, and gives its history."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["v_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["v_out", "x"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [2]),
        ],
        [helper.make_tensor_value_info(n, t, None) for n, t in (("go_out", 9), ("v_out", FLOAT), ("seen", FLOAT))],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "history"], body=body)
    feeds = {"x": normal(2)} if trips is not None else {"x": normal(2), "n": np.array(3)}
    constants = {"n": np.array(trips)} if trips is not None else {}
    return make_model([node], feeds, {"last": FLOAT, "history": FLOAT}, constants=constants)


def test_a_loop_with_constant_trip_count_has_exact_outputs() -> None:
    x = np.array([1, 2], np.float32)
    last, history = run(loop_model(3), {"x": x})
    assert last.tolist() == [8, 16]
    assert history.tolist() == [[3, 6], [5, 10], [9, 18]]


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_loop_with_unknown_trip_count_was_padded_to_max_loop_iterations(target: str) -> None:
    x = np.array([1, 2], np.float32)
    program = public_program.wrap(parse_onnx(loop_model(None), max_loop_iterations=5)).compile(target)
    for trips, wanted in ((3, [[3, 6], [5, 10], [9, 18]]), (1, [[3, 6]]), (0, [])):
        last, history = (np.asarray(r) for r in program.run({"x": x, "n": np.array(trips)}))
        assert last.tolist() == [2**trips, 2 * 2**trips]
        assert history.shape == (trips, 2)
        assert history.tolist() == wanted


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_scan_outputs_of_no_iteration_had_no_lengths_where_those_of_inputs_were_open(target: str) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Neg", ["v"], ["v_out"]),
            helper.make_node("Transpose", ["v"], ["seen"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, t, d) for n, t, d in (("i", INT64, []), ("go", 9, []), ("v", FLOAT, None))],
        [helper.make_tensor_value_info(n, t, None) for n, t in (("go_out", 9), ("v_out", FLOAT), ("seen", FLOAT))],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "history"], body=body)
    x = normal(3, 4)
    model = make_model([node], {"x": x, "n": np.array(3)}, {"last": FLOAT, "history": FLOAT})
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, "ab"):
        dim.dim_param = name
    program = public_program.wrap(parse_onnx(model)).compile(target)
    for trips in (0, 2):
        last, history = (np.asarray(r) for r in program.run({"x": x, "n": np.array(trips)}))
        assert last.shape == (3, 4)
        assert history.shape == (trips, 4, 3)


def counting(trips: int | None, go: str, start: bool | None = None) -> onnx.ModelProto:
    """A loop without scan outputs that counts its iterations; ``go`` says how the condition goes on."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "one"], ["v_out"]),
            helper.make_node("Identity", ["go"], ["same"]),
            helper.make_node("Identity", ["yes"], ["always"]),
            helper.make_node("Less", ["v", "many"], ["few"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [1]),
        ],
        [helper.make_tensor_value_info(go, TensorProto.BOOL, []), helper.make_tensor_value_info("v_out", FLOAT, [1])],
    )
    constants = {"one": np.ones(1, np.float32), "many": np.full(1, 500, np.float32), "yes": np.array(True)}
    constants |= {"n": np.array(trips)} if trips is not None else {}
    constants |= {"start": np.array(start)} if start is not None else {}
    node = helper.make_node("Loop", ["n" * (trips is not None), "start" * (start is not None), "x"], ["y"], body=body)
    return make_model([node], {"x": np.zeros(1, np.float32)}, {"y": FLOAT}, constants=constants)


@pytest.mark.parametrize("go", ["same", "always"])
@pytest.mark.parametrize("start", [None, True])
def test_a_loop_of_more_iterations_than_anyone_waits_for_is_refused(go: str, start: bool | None) -> None:
    with pytest.raises(
        UnsupportedError, match=r"Loop.*4611686018427387904 iterations exceed limit_max_iterations=65535"
    ):
        parse_onnx(counting(2**62, go, start))
    x = {"x": np.zeros(1, np.float32)}
    assert run(counting(2**62, go, False), x)[0].tolist() == [0]
    with pytest.raises(UnsupportedError, match="40 iterations exceed limit_max_iterations=39"):
        parse_onnx(counting(40, go, start), limit_max_iterations=39)
    assert run(counting(40, go, start), x, limit_max_iterations=40)[0].tolist() == [40]


@pytest.mark.parametrize("trips", [None, 2**62])
def test_a_loop_may_run_until_its_condition_ends_it(trips: int | None) -> None:
    assert run(counting(trips, "few"), {"x": np.zeros(1, np.float32)})[0].tolist() == [501]


def test_a_loop_without_trip_count_was_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LONGEST", 300)
    for trips in (None, 2**62):
        with pytest.raises(MgxError, match="loop: runs longer than 300 iterations"):
            run(counting(trips, "few"), {"x": np.zeros(1, np.float32)}, limit_max_iterations=200)
        assert run(counting(trips, "few"), {"x": np.zeros(1, np.float32)}, limit_max_iterations=600)[0].tolist() == [
            501
        ]


def test_a_loop_that_carries_nothing_may_leave_its_condition_out() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_out"]), helper.make_node("Identity", ["i"], ["seen"])],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("seen", INT64, []),
        ],
    )
    node = helper.make_node("Loop", ["n", ""], ["history"], body=body)
    model = make_model([node], {}, {"history": INT64}, constants={"n": np.array(3)})
    assert run(model, {})[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_loop_without_condition_that_waited_for_lengths_lost_an_input(target: str) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Identity", ["r"], ["seen"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("seen", FLOAT, None),
        ],
    )
    feeds = {"n": np.array(3), "x": normal(2, 3), "lens": ints(6)}
    nodes = [
        helper.make_node("Reshape", ["x", "lens"], ["r"]),
        helper.make_node("Loop", ["n", ""], ["history"], body=body),
    ]
    model = make_model(nodes, feeds, {"history": FLOAT})
    assert_like_onnxruntime(model, feeds)
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "rank"
    (found,) = public_program.wrap(parse_onnx(model)).compile(target).run(feeds)
    np.testing.assert_array_equal(found, np.stack([feeds["x"].reshape(6)] * 3))


@pytest.mark.parametrize("trips", [3, None])
def test_scan_outputs_of_scalars_have_one_axis(trips: int | None) -> None:
    """Scan outputs of a captured model input, and of a carried value."""
    names = {"i": INT64, "go": TensorProto.BOOL, "v": FLOAT}
    results = {"go_out": TensorProto.BOOL, "v_out": FLOAT, "captured": FLOAT, "carried": FLOAT}
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Clip", ["v", "low", "high"], ["v_out"]),
            helper.make_node("Identity", ["x"], ["captured"]),
            helper.make_node("Identity", ["v"], ["carried"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in names.items()],
        [helper.make_tensor_value_info(n, t, []) for n, t in results.items()],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["last", "captures", "carries"], body=body)
    feeds = {"x": np.array(2, np.float32)} | ({} if trips else {"n": np.array(3)})
    constants = {"low": np.float32(-1), "high": np.float32(1)} | ({"n": np.array(3)} if trips else {})
    model = make_model([node], feeds, dict.fromkeys(("last", "captures", "carries"), FLOAT), constants=constants)
    assert_like_onnxruntime(model, feeds)
    for target in ("ref", "cpu"):
        found = public_program.wrap(parse_onnx(model)).compile(target).run(feeds)
        assert [np.asarray(r).tolist() for r in found] == [1, [2, 2, 2], [2, 1, 1]]


def test_a_loop_body_of_the_wrong_type_is_refused() -> None:
    model = loop_model(2)
    body = model.graph.node[0].attribute[0].g
    body.node[0].op_type = "Greater"
    with pytest.raises(ParseError, match=r"Loop.*carried value 'v' enters as float_type.*and leaves .*bool_type"):
        parse_onnx(model)


def test_scan_goes_through_axes_in_both_directions() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "a"], ["sum_out"]),
            helper.make_node("Mul", ["sum_out", "b"], ["row"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("sum", "a", "b")],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in ("sum_out", "row")],
    )
    node = helper.make_node(
        "Scan",
        ["start", "p", "q"],
        ["total", "rows"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[0, 1],
        scan_output_axes=[-1],
        scan_output_directions=[1],
    )
    p, q = normal(3, 2), normal(2, 3, seed=1)
    model = make_model([node], {"start": normal(2), "p": p, "q": q}, {"total": FLOAT, "rows": FLOAT})
    total, rows = run(model, {"start": np.zeros(2, np.float32), "p": p, "q": q})
    running = np.cumsum(p, 0)
    expected = np.stack([running[k] * q[:, 2 - k] for k in range(3)][::-1], axis=-1)
    np.testing.assert_allclose(total, running[-1], rtol=1e-5)
    np.testing.assert_allclose(rows, expected, rtol=1e-5)


def test_sequences_of_known_length_are_unrolled() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=1),
        helper.make_node("SequenceAt", ["s", "one"], ["second"]),
        helper.make_node("SequenceInsert", ["s", "second", "zero"], ["t"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=1),
        helper.make_node("SequenceLength", ["t"], ["n"]),
    ]
    x = normal(2, 5)
    constants = {"sizes": ints(2, 3), "one": np.array(1), "zero": np.array(0)}
    y, n = run(make_model(nodes, {"x": x}, {"y": FLOAT, "n": INT64}, constants=constants), {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([x[:, 2:], x], 1))
    assert n.shape == () and n == 3


def test_recurrent_activations_take_their_parameters_in_order() -> None:
    x, w, r = normal(3, 1, 2), normal(1, 9, 2, seed=1), normal(1, 9, 3, seed=2)
    names = ["HardSigmoid", "ScaledTanh"]
    node = helper.make_node(
        "GRU",
        ["x", "w", "r"],
        ["", "h"],
        hidden_size=3,
        activations=names,
        activation_alpha=[0.3, 0.9],
        activation_beta=[0.4, 1.1],
    )
    program = parse_onnx(make_model([node], {"x": x, "w": w, "r": r}, {"h": FLOAT}))
    gru = next(ins for ins in program.main if ins.name == "gru")
    assert [str(f) for f in gru.op.attributes()["actv_func"]] == [
        "hard_sigmoid[alpha=0.3,beta=0.4]",
        "scaled_tanh[alpha=0.9,beta=1.1]",
    ]


def test_models_may_declare_initializers_as_inputs() -> None:
    model, feeds = single("Add", [normal(2), normal(2, seed=1)], constant=[1])
    model.graph.input.append(value_info("x1", normal(2)))
    assert list(parse_onnx(model).parameter_shapes()) == ["x0"]
    assert run(model, feeds)[0].shape == (2,)
