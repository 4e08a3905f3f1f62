"""Tensors without axes and vectors of one element, which are distinguished as in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.api.program import program as public_program
from mgx_numba.api.shape import dynamic_dimension
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program

from ..values import normal
from .onnx_cases import compare
from .support import FLOAT, INT64, assert_like_onnxruntime, ints, make_model, run

BOOL = TensorProto.BOOL
X = normal()


def node(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, **attributes)


def graph(name: str, nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, int]) -> onnx.GraphProto:
    """A subgraph; inputs have type and lengths, outputs a type."""
    given = [helper.make_tensor_value_info(n, t, lens) for n, (t, lens) in inputs.items()]
    return helper.make_graph(
        nodes, name, given, [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    )


VECTORS = {
    "Expand of a scalar": [node("Expand", ["x", "one"], ["v"])],
    "Squeeze of an expanded scalar": [node("Expand", ["x", "ones"], ["u"]), node("Squeeze", ["u", "zero"], ["v"])],
    "Slice of an expanded scalar": [node("Expand", ["x", "four"], ["u"]), node("Slice", ["u", "one", "two"], ["v"])],
    "step through an expanded scalar": [
        node("Expand", ["x", "four"], ["u"]),
        node("Slice", ["u", "zero", "four", "zero", "four"], ["v"]),
    ],
    "sum of an expanded and a plain scalar": [node("Expand", ["x", "one"], ["u"]), node("Add", ["u", "x"], ["v"])],
}
USES = {
    "Shape": [node("Shape", ["v"], ["y"])],
    "Concat": [node("Concat", ["v", "v"], ["y"], axis=0)],
    "Pad": [node("Pad", ["v", "pads"], ["y"])],
    "Slice": [node("Slice", ["v", "zero", "one"], ["y"])],
    "Gather": [node("Gather", ["v", "zero"], ["y"])],
    "TopK": [node("TopK", ["v", "one"], ["y", "p"])],
    "MatMul": [node("MatMul", ["v", "row"], ["y"])],
    "Unsqueeze": [node("Unsqueeze", ["v", "one"], ["y"])],
    "Squeeze": [node("Squeeze", ["v"], ["y"])],
    "ReduceSum": [node("ReduceSum", ["v"], ["y"], keepdims=0)],
    "Relu": [node("Relu", ["v"], ["y"])],
}
CONSTANTS = {
    "zero": ints(0),
    "one": ints(1),
    "two": ints(2),
    "four": ints(4),
    "ones": ints(1, 1),
    "pads": ints(1, 2),
    "row": normal(1, 3),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("source", VECTORS)
def test_vectors_of_one_element_have_an_axis(source: str, use: str) -> None:
    kind = INT64 if use == "Shape" else FLOAT
    assert_like_onnxruntime(
        make_model([*VECTORS[source], *USES[use]], {"x": X}, {"y": kind}, constants=CONSTANTS), {"x": X}
    )


@pytest.mark.parametrize("lens", [(), (1,)])
def test_bounds_scales_and_zero_points_keep_the_rank_of_what_they_act_on(lens: tuple[int, ...]) -> None:
    x = normal(*lens)
    nodes = [
        node("Clip", ["x", "low", "high"], ["y"]),
        node("QuantizeLinear", ["x", "scale", "point"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "point"], ["z"]),
    ]
    scalars = {"low": -0.25, "high": 0.5, "scale": 0.125}
    constants = {name: np.array(value, np.float32) for name, value in scalars.items()}
    constants["point"] = np.array(3, np.int8)
    assert_like_onnxruntime(make_model(nodes, {"x": x}, {"y": FLOAT, "z": FLOAT}, constants=constants), {"x": x})


def test_one_update_without_axes_is_scattered() -> None:
    feeds = {"x": normal(4), "u": normal()}
    nodes = [node("ScatterND", ["x", "i", "u"], ["y"]), node("ScatterND", ["x", "i", "u"], ["z"], reduction="add")]
    model = make_model(nodes, feeds, {"y": FLOAT, "z": FLOAT}, constants={"i": ints(2)})
    assert_like_onnxruntime(model, feeds)


def test_nonzero_of_a_scalar_has_no_rows() -> None:
    nodes = [node("NonZero", ["x"], ["y"]), node("NonZero", ["c"], ["z"])]
    model = make_model(nodes, {"x": X}, {"y": INT64, "z": INT64}, constants={"c": np.array(2, np.float32)})
    for value, columns in ((3, 1), (0, 0)):
        y, z = run(model, {"x": np.array(value, np.float32)})
        assert (y.shape, z.shape) == ((0, columns), (0, 1))


def dynamic(nodes: list[onnx.NodeProto], outputs: list[str], constants: dict[str, np.ndarray]) -> Program:
    """A program of a vector ``x`` of up to 8 elements."""
    model = make_model(nodes, {"x": normal(2)}, dict.fromkeys(outputs, FLOAT), constants=constants)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return parse_onnx(model, default_dyn_dim_value=dynamic_dimension(0, 8)._value)


@pytest.mark.parametrize("target", [None, "ref", "cpu"])
@pytest.mark.parametrize("lens", [(), (1,), (3, 1), (2, 1, 1)])
def test_expand_of_dynamic_lengths_goes_both_ways(lens: tuple[int, ...], target: str | None) -> None:
    net = public_program.wrap(dynamic([node("Expand", ["x", "s"], ["y"])], ["y"], {"s": ints(*lens)}))
    if target is not None:
        net.compile(target)
    for n in (4, 1, 0):
        x = normal(n)
        (y,) = net.run({"x": x})
        compare(np.asarray(y), np.broadcast_to(x, np.broadcast_shapes(x.shape, lens)).copy(), 0, 0)


@pytest.mark.parametrize("target", [None, "ref", "cpu"])
def test_a_dynamic_length_of_one_is_no_scalar(target: str | None) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Expand", ["c", "s"], ["y"]),
        node("ReduceSum", ["x"], ["z"], keepdims=0),
        node("Gather", ["x", "k"], ["w"]),
    ]
    constants = {"c": np.array(2, np.float32), "k": np.array(0)}
    net = public_program.wrap(dynamic(nodes, ["y", "z", "w"], constants))
    if target is not None:
        net.compile(target)
    for n in (3, 1, 1):
        assert [r.shape for r in net.run({"x": normal(n)})] == [(n,), (), ()]


def opened(model: onnx.ModelProto) -> Any:
    """A program of a model all of whose inputs have open lengths without names."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return public_program.wrap(parse_onnx(model))


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_product_of_matrices_whose_open_outer_lengths_were_taken_to_be_equal(target: str) -> None:
    model = make_model([node("MatMul", ["a", "b"], ["y"])], {"a": normal(2, 3, 4), "b": normal(2, 4, 5)}, {"y": FLOAT})
    net = opened(model).compile(target)
    for one, other in ((2, 2), (3, 1), (1, 3), (1, 1), (0, 1)):
        feeds = {"a": normal(one, 3, 4), "b": normal(other, 4, 5, seed=1)}
        compare(np.asarray(net.run(feeds)[0]), feeds["a"] @ feeds["b"], 1e-5, 1e-5)


def test_lengths_of_one_name_are_equal() -> None:
    model = make_model([node("MatMul", ["a", "b"], ["y"])], {"a": normal(2, 3, 4), "b": normal(2, 4, 5)}, {"y": FLOAT})
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    assert [i.name for i in parse_onnx(model).main if not i.name.startswith("@")] == ["dot"]


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_of_a_scalar_over_axes_that_a_run_gives_got_an_axis(keepdims: int, target: str) -> None:
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=keepdims)]
    feeds = {"x": np.array(-2, np.float32), "axes": ints()}
    model = make_model(nodes, feeds, {"y": FLOAT}, opset=18)
    assert_like_onnxruntime(model, feeds)
    compare(np.asarray(opened(model).compile(target).run(feeds)[0]), feeds["x"], 0, 0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("noop", [0, 1])
def test_no_axes_given_by_a_run_were_none_where_they_are_all(noop: int, target: str) -> None:
    nodes = [node("ReduceMin", ["x", "axes"], ["y"], noop_with_empty_axes=noop)]
    model = make_model(nodes, {"x": normal(2, 3), "axes": ints(1)}, {"y": FLOAT}, opset=18)
    net = opened(model).compile(target)
    for axes in (ints(), ints(1), ints(-2, 1)):
        feeds = {"x": normal(2, 3), "axes": axes}
        model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "count"
        assert_like_onnxruntime(model, feeds)
        wanted = feeds["x"] if noop and not axes.size else feeds["x"].min(tuple(axes) or None, keepdims=True)
        compare(np.asarray(net.run(feeds)[0]), wanted, 0, 0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_resized_integers_of_open_lengths_had_no_type(target: str) -> None:
    """ONNX's inference says nothing of sizes that a run gives, and no input is a float."""
    x = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    sizes = ints(2, 3, 4, 2)
    model = make_model(
        [node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")],
        {"x": x, "sizes": sizes},
        {"y": TensorProto.UINT8},
        opset=18,
    )
    assert_like_onnxruntime(model, {"x": x, "sizes": sizes})
    (y,) = opened(model).compile(target).run({"x": x, "sizes": sizes})
    compare(np.asarray(y), run(model, {"x": x, "sizes": sizes})[0], 0, 0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_node_that_one_sample_of_lengths_fits_had_the_lengths_of_its_results(target: str) -> None:
    """Four channels fit one sample, whose lengths were taken to be fixed."""
    nodes = [
        node("GroupNormalization", ["x", "s", "s"], ["n"], num_groups=1),
        node("LpPool", ["n"], ["p"], kernel_shape=[2], p=2),
        node("Greater", ["p", "c"], ["y"]),
    ]
    x, c = normal(1, 4, 6), normal(1, 1, 5, seed=1)
    constants = {"s": normal(4, seed=2), "c": c}
    model = make_model(nodes, {"x": x}, {"y": BOOL}, opset=21, constants=constants)
    compare(np.asarray(opened(model).compile(target).run({"x": x})[0]), run(model, {"x": x})[0], 0, 0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_the_last_states_of_a_recurrent_node_in_a_deferred_body_had_no_value(target: str) -> None:
    rows = graph(
        "body",
        [
            node("Unsqueeze", ["row", "zero"], ["step"]),
            node("RNN", ["step", "w", "r"], ["", "last"], hidden_size=2),
            node("Identity", ["count"], ["next"]),
        ],
        {"count": (FLOAT, []), "row": (FLOAT, [1, 3])},
        {"next": FLOAT, "last": FLOAT},
    )
    scan = node("Scan", ["k", "x"], ["end", "states"], body=rows, num_scan_inputs=1, scan_input_axes=[1])
    x = normal(1, 4, 3)
    feeds = {"k": np.array(0, np.float32), "x": x}
    constants = {"zero": ints(0), "w": normal(1, 2, 3), "r": normal(1, 2, 2, seed=1)}
    model = make_model([scan], feeds, {"end": FLOAT, "states": FLOAT}, constants=constants)
    assert_like_onnxruntime(model, feeds)
    compare(np.asarray(opened(model).compile(target).run(feeds)[1]), run(model, feeds)[1], 1e-5, 1e-5)


def branches() -> onnx.ModelProto:
    """Results without axes, computed and constant, and one with an axis, from both branches of an If."""
    then = graph(
        "then",
        [
            node("Mul", ["x", "x"], ["t"]),
            node("ReduceSum", ["v"], ["s"], keepdims=0),
            node("Expand", ["x", "one"], ["e"]),
        ],
        {},
        {"t": FLOAT, "s": FLOAT, "e": FLOAT},
    )
    seven = numpy_helper.from_array(np.array(7, np.float32), "seven")
    other = graph(
        "else",
        [
            node("Neg", ["x"], ["t"]),
            node("Constant", [], ["s"], value=seven),
            node("Slice", ["v", "one", "two"], ["e"]),
        ],
        {},
        {"t": FLOAT, "s": FLOAT, "e": FLOAT},
    )
    return make_model(
        [node("If", ["c"], ["p", "q", "r"], then_branch=then, else_branch=other)],
        {"x": X, "v": normal(3), "c": np.array(True)},
        dict.fromkeys("pqr", FLOAT),
        constants=CONSTANTS,
    )


def rounds() -> onnx.ModelProto:
    """A Loop that carries a scalar and a vector of one element, with scan outputs of both."""
    carried = {"k": (INT64, []), "go": (BOOL, []), "a": (FLOAT, []), "b": (FLOAT, [1])}
    body = graph(
        "body",
        [
            node("Identity", ["go"], ["on"]),
            node("Add", ["a", "x"], ["c"]),
            node("Expand", ["c", "one"], ["d"]),
            node("Identity", ["c"], ["e"]),
            node("Identity", ["d"], ["f"]),
        ],
        carried,
        {"on": BOOL, "c": FLOAT, "d": FLOAT, "e": FLOAT, "f": FLOAT},
    )
    return make_model(
        [node("Expand", ["x", "one"], ["w"]), node("Loop", ["n", "", "x", "w"], ["p", "q", "r", "s"], body=body)],
        {"x": X},
        dict.fromkeys("pqrs", FLOAT),
        constants={**CONSTANTS, "n": np.array(3)},
    )


def scanned() -> onnx.ModelProto:
    """A Scan over a vector, whose slices and state have no axes."""
    body = graph(
        "body",
        [node("Add", ["a", "e"], ["b"]), node("Mul", ["b", "e"], ["f"])],
        {"a": (FLOAT, []), "e": (FLOAT, [])},
        {"b": FLOAT, "f": FLOAT},
    )
    feeds = {"x": X, "v": normal(3)}
    return make_model(
        [node("Scan", ["x", "v"], ["p", "q"], body=body, num_scan_inputs=1)], feeds, {"p": FLOAT, "q": FLOAT}
    )


@pytest.mark.parametrize("target", ["ref", "cpu"])
@pytest.mark.parametrize("build", [branches, rounds, scanned])
def test_results_of_control_flow_have_the_ranks_of_onnxruntime(build: Any, target: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    net = public_program.wrap(parse_onnx(model)).compile(target)
    for condition in (True, False):
        given = {"x": X, "v": normal(3), "c": np.array(condition)}
        feeds = {i.name: given[i.name] for i in model.graph.input}
        for result, expected in zip(net.run(feeds), session.run(None, feeds), strict=True):
            compare(np.asarray(result), expected, 1e-6, 1e-6)


def test_the_runner_of_node_tests_tells_ranks_apart() -> None:
    with pytest.raises(AssertionError):
        compare(np.ones(1, np.float32), np.ones((), np.float32), 0, 0)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("factor", [-2.0, 1.0])
@pytest.mark.parametrize("tiled", [False, True])
def test_a_constant_vector_of_one_element_gave_a_product_with_a_scalar_no_axis(
    tiled: bool, factor: float, fast_math: bool
) -> None:
    nodes = [node("Mul", ["c", "x"], ["a"]), node("MatMul", ["a", "w"], ["b"])]
    nodes += [node("Tile", ["b", "r"], ["y"])] if tiled else []
    feeds = {"x": np.array(3, np.float32)}
    constants = {"c": np.array([factor], np.float32), "w": normal(1, 4), "r": ints(3)}
    model = make_model(nodes, feeds, {nodes[-1].output[0]: FLOAT}, constants=constants)
    (found,) = public_program.wrap(parse_onnx(model)).compile("cpu", fast_math=fast_math).run(feeds)
    wanted = np.tile(np.float32(3 * factor) * constants["w"][0], 3 if tiled else 1)
    compare(np.asarray(found), wanted, 1e-6, 0)


@pytest.mark.parametrize("fast_math", [False, True])
def test_results_of_one_cluster_with_and_without_an_axis(fast_math: bool) -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Mul", ["a", "c"], ["b"]),
        node("Neg", ["b"], ["d"]),
        node("Unsqueeze", ["b", "zero"], ["e"]),
        node("Add", ["a", "x"], ["f"]),
    ]
    feeds = {"x": np.array(0.5, np.float32)}
    constants = {"c": np.array([2], np.float32), "zero": ints(0)}
    model = make_model(nodes, feeds, dict.fromkeys("abdef", FLOAT), constants=constants)
    results = public_program.wrap(parse_onnx(model)).compile("cpu", fast_math=fast_math).run(feeds)
    assert [np.asarray(r).shape for r in results] == [(), (1,), (1,), (1, 1), ()]
    a = np.exp(np.float32(0.5))
    for found, wanted in zip(results, (a, a * 2, -a * 2, a * 2, a + np.float32(0.5)), strict=True):
        np.testing.assert_allclose(np.asarray(found).reshape(()), wanted, rtol=1e-6)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_an_output_may_be_listed_twice(target: str) -> None:
    x = normal(3)
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])]
    model = make_model(nodes, {"x": x}, {"y": FLOAT, "z": FLOAT})
    for name in ("y", "x", "x"):
        model.graph.output.add().CopyFrom(helper.make_tensor_value_info(name, FLOAT, [3]))
    assert_like_onnxruntime(model, {"x": x})
    results = [np.asarray(r) for r in public_program.wrap(parse_onnx(model)).compile(target).run({"x": x})]
    for found, wanted in zip(results, (np.maximum(x, 0), -x, np.maximum(x, 0), x, x), strict=True):
        np.testing.assert_array_equal(found, wanted)
