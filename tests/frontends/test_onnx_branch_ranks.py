"""Branches and loops whose values differ in rank between runs, and branches that do not fit their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.api.program import program as public_program
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import ParseError, ShapeError
from mgx_numba.frontends.onnx import parse_onnx

from ..values import normal
from .onnx_cases import compare
from .support import FLOAT, INT64, ints, make_model
from .test_onnx_ranks import BOOL, graph, node

TARGETS = ("ref", "cpu")
VALUES = {"scalar": normal(), "single": normal(1), "vector": normal(4), "matrix": normal(2, 3)}
CONSTANTS = {"zero": ints(0), "one": ints(1), "two": np.array(2, np.float32), "none": ints()}
USES = [
    node("Add", ["r", "two"], ["add"]),
    node("Shape", ["r"], ["shape"]),
    node("ReduceSum", ["r"], ["sum"], keepdims=0),
    node("Unsqueeze", ["r", "zero"], ["wide"]),
    node("SequenceConstruct", ["r", "a"], ["both"]),
    node("SequenceAt", ["both", "zero"], ["first"]),
    node("Optional", ["r"], ["some"]),
    node("OptionalGetElement", ["some"], ["held"]),
]
RESULTS = {"r": FLOAT, "add": FLOAT, "shape": INT64, "sum": FLOAT, "wide": FLOAT, "first": FLOAT, "held": FLOAT}


def session_of(model: onnx.ModelProto) -> Any:
    """ONNX Runtime's, which refuses branches that given lengths do not fit, so that it is given none."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return onnxruntime.InferenceSession(
        opened(copy, True).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def opened(model: onnx.ModelProto, is_open: bool) -> onnx.ModelProto:
    """Return the model, or a copy with open lengths of its inputs."""
    for value in model.graph.input if is_open else ():
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return model


def check(
    model: onnx.ModelProto, runs: Sequence[Mapping[str, np.ndarray]], target: str, loaded: Path | None = None
) -> None:
    """Compare results of several runs with ONNX Runtime's; with a path, of the program loaded from a file."""
    session = session_of(model)
    net = public_program.wrap(parse_onnx(model)).compile(target)
    if loaded is not None:
        mgx_numba.save(net, loaded)
        net = mgx_numba.load(loaded)
    for feeds in runs:
        for result, expected in zip(net.run(feeds), session.run(None, dict(feeds)), strict=True):
            compare(np.asarray(result), expected, 1e-6, 1e-6)


def two_ranks(first: str, second: str) -> onnx.ModelProto:
    """Return a model with an If whose branches have two ranks, and with readers of its result."""
    then = graph("then", [node("Neg", ["a"], ["t"])], {}, {"t": FLOAT})
    other = graph("else", [node("Abs", ["b"], ["e"])], {}, {"e": FLOAT})
    chosen = node("If", ["c"], ["r"], then_branch=then, else_branch=other)
    feeds = {"a": VALUES[first], "b": VALUES[second], "c": np.array(True)}
    return make_model([chosen, *USES], feeds, RESULTS, constants=CONSTANTS)


PAIRS = [("scalar", "single"), ("single", "scalar"), ("scalar", "vector"), ("matrix", "vector"), ("matrix", "scalar")]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_branches_of_two_ranks_were_refused_or_gave_a_vector(pair: tuple[str, str], target: str, is_open: bool) -> None:
    runs = [{"a": VALUES[pair[0]], "b": VALUES[pair[1]], "c": np.array(c)} for c in (True, False, True)]
    check(opened(two_ranks(*pair), is_open), runs, target)


@pytest.mark.parametrize("target", TARGETS)
def test_files_keep_that_a_rank_is_unknown(target: str, tmp_path: Path) -> None:
    runs = [{"a": VALUES["scalar"], "b": VALUES["single"], "c": np.array(c)} for c in (True, False)]
    check(two_ranks("scalar", "single"), runs, target, tmp_path / "ranks.mxr")


STEPS = {
    "an axis more": ([node("Unsqueeze", ["s", "zero"], ["n"])], "scalar", (0, 1, 3)),
    "a scalar and a vector of one": ([node("Add", ["s", "u"], ["n"])], "scalar", (0, 1, 3)),
    "a vector, then its sum": ([node("ReduceSum", ["s"], ["n"], keepdims=0)], "vector", (0, 1, 3)),
    "a vector of one, then its sum": ([node("ReduceSum", ["s"], ["n"], keepdims=0)], "single", (0, 1, 3)),
    "a scalar": ([node("Mul", ["s", "two"], ["n"])], "scalar", (0, 1, 3)),
}


def growing(steps: Sequence[onnx.NodeProto], start: str, scan: bool) -> onnx.ModelProto:
    """Return a model with a Loop from state ``s`` to ``n``; an optional scan output collects the states."""
    scanned = [node("Identity", ["s"], ["o"])] if scan else []
    results = {"on": BOOL, "n": FLOAT, **({"o": FLOAT} if scan else {})}
    given = {"k": (INT64, []), "go": (BOOL, []), "s": (FLOAT, None)}
    body = graph("body", [node("Identity", ["go"], ["on"]), *steps, *scanned], given, results)
    feeds = {"x": VALUES[start], "u": VALUES["single"], "trips": np.array(1)}
    outputs = {"y": FLOAT, **({"z": FLOAT} if scan else {})}
    return make_model([node("Loop", ["trips", "", "x"], [*outputs], body=body)], feeds, outputs, constants=CONSTANTS)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", STEPS)
def test_a_state_of_a_loop_could_not_change_its_rank(name: str, target: str, is_open: bool) -> None:
    steps, start, trips = STEPS[name]
    feeds = {"x": VALUES[start], "u": VALUES["single"]}
    check(opened(growing(steps, start, False), is_open), [{**feeds, "trips": np.array(t)} for t in trips], target)
    check(opened(growing(steps, start, True), is_open), [{**feeds, "trips": np.array(1)}], target)


@pytest.mark.parametrize("target", TARGETS)
def test_branches_of_two_ranks_inside_of_a_loop_were_refused(target: str) -> None:
    then = graph("then", [node("Neg", ["s"], ["t"])], {}, {"t": FLOAT})
    other = graph("else", [node("Unsqueeze", ["s", "zero"], ["e"])], {}, {"e": FLOAT})
    steps = [
        node("Less", ["k", "limit"], ["c"]),
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        node("Add", ["r", "two"], ["n"]),
    ]
    model = growing(steps, "scalar", False)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "limit"))
    runs = [{"x": VALUES["scalar"], "u": VALUES["single"], "trips": np.array(t)} for t in (0, 1, 4)]
    check(model, runs, target)


def speech(condition: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """The pattern of silero-vad: a branch that its lengths do not fit, two levels deep, each choosing a rank."""
    squeezed = graph("rank 3", [node("Squeeze", ["x", "one"], ["s"])], {}, {"s": FLOAT})
    plain = graph("rank 4", [node("Identity", ["x"], ["i"])], {}, {"i": FLOAT})
    layers = [
        node("Equal", ["length", "many"], ["fits"]),
        node("If", ["fits"], ["v"], then_branch=squeezed, else_branch=plain),
        node("LSTM", ["v", "w", "r"], ["", "h"], hidden_size=2),
        node("ReduceSum", ["h"], ["p"], keepdims=0),
    ]
    large = graph("large", layers, {}, {"p": FLOAT})
    small = graph("small", [node("ReduceMax", ["x"], ["q"])], {}, {"q": FLOAT})
    nodes = [
        node("Shape", ["x"], ["lens"]),
        node("Gather", ["lens", "one"], ["length"]),
        *condition,
        node("If", ["is_large"], ["y"], then_branch=large, else_branch=small),
    ]
    constants = {**CONSTANTS, "w": normal(1, 8, 3), "r": normal(1, 8, 2), "many": ints(1)}
    return make_model(nodes, {"x": normal(2, 4, 5, 3), "rate": np.array(8000)}, {"y": FLOAT}, constants=constants)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_of_another_rank_that_is_not_taken_failed_the_compile(target: str, is_open: bool) -> None:
    model = speech([node("Equal", ["rate", "sixteen"], ["is_large"])])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(16000), "sixteen"))
    model = opened(model, is_open)
    check(model, [{"x": normal(2, 4, 5, 3), "rate": np.array(8000)}], target)
    net = public_program.wrap(parse_onnx(model)).compile(target)
    with pytest.raises((ParseError, ShapeError), match="dimensions"):
        net.run({"x": normal(2, 4, 5, 3), "rate": np.array(16000)})


def product(weights: str) -> onnx.GraphProto:
    return graph(weights, [node("MatMul", ["x", weights], [f"by {weights}"])], {}, {f"by {weights}": FLOAT})


MISFITS = {"x": normal(2, 3), "c": np.array(False)}
WEIGHTS = {"u": normal(5, 2), "v": normal(3, 2), "w": normal(4, 2)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_that_does_not_fit_fails_when_it_is_taken(target: str) -> None:
    model = make_model(
        [node("If", ["c"], ["y"], then_branch=product("u"), else_branch=product("v"))],
        MISFITS,
        {"y": FLOAT},
        constants=WEIGHTS,
    )
    net = public_program.wrap(parse_onnx(model)).compile(target)
    compare(np.asarray(net.run(MISFITS)[0]), MISFITS["x"] @ WEIGHTS["v"], 1e-5, 1e-5)
    with pytest.raises(ShapeError, match=r"branch 'If_0_if': .*MatMul.* inner lengths of \[2, 3\] x \[5, 2\] differ"):
        net.run({**MISFITS, "c": np.array(True)})


def test_an_if_of_which_no_branch_fits_is_refused_unless_a_branch_around_it_is() -> None:
    inner = node("If", ["c"], ["n"], then_branch=product("u"), else_branch=product("w"))
    refused = make_model([node("Identity", ["n"], ["y"]), inner][::-1], MISFITS, {"y": FLOAT}, constants=WEIGHTS)
    with pytest.raises(ShapeError, match=r"branch 'u': .* \[5, 2\] differ.*; branch 'w': .* \[4, 2\] differ"):
        parse_onnx(refused)
    around = graph("around", [inner], {}, {"n": FLOAT})
    taken = make_model(
        [node("If", ["c"], ["y"], then_branch=around, else_branch=product("v"))],
        MISFITS,
        {"y": FLOAT},
        constants=WEIGHTS,
    )
    net = public_program.wrap(parse_onnx(taken)).compile("ref")
    compare(np.asarray(net.run(MISFITS)[0]), MISFITS["x"] @ WEIGHTS["v"], 1e-5, 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_body_that_does_not_fit_failed_a_loop_without_iterations(target: str) -> None:
    model = growing([node("MatMul", ["s", "u"], ["n"])], "matrix", False)
    net = public_program.wrap(parse_onnx(model)).compile(target)
    feeds = {"x": VALUES["matrix"], "u": VALUES["single"]}
    compare(np.asarray(net.run({**feeds, "trips": np.array(0)})[0]), VALUES["matrix"], 0, 0)
    with pytest.raises(ShapeError, match="iteration 0 .*MatMul"):
        net.run({**feeds, "trips": np.array(2)})


def test_a_body_that_does_not_fit_and_certainly_runs_is_refused() -> None:
    model = growing([node("MatMul", ["s", "u"], ["n"])], "matrix", False)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "trips"))
    with pytest.raises(ShapeError, match="MatMul"):
        parse_onnx(model)


@pytest.mark.parametrize("is_open", [False, True])
def test_branches_of_two_types_are_refused(is_open: bool) -> None:
    then = graph("then", [node("Neg", ["x"], ["t"])], {}, {"t": FLOAT})
    other = graph("else", [node("Cast", ["x"], ["e"], to=INT64)], {}, {"e": INT64})
    model = make_model([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], MISFITS, {"y": FLOAT})
    with pytest.raises(
        ParseError, match="If.*result 0 is .*float_type.* in one branch and .*int64_type.* in the other"
    ):
        parse_onnx(opened(model, is_open))


def test_a_branch_that_no_lengths_would_make_readable_is_refused() -> None:
    wrong = graph("then", [node("Reluu", ["x"], ["t"])], {}, {"t": FLOAT})
    model = make_model(
        [node("If", ["c"], ["y"], then_branch=wrong, else_branch=product("v"))],
        MISFITS,
        {"y": FLOAT},
        constants=WEIGHTS,
    )
    with pytest.raises(ParseError, match="unknown operator 'Reluu'"):
        parse_onnx(model)


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_gives_the_rank_of_its_branch(condition: bool) -> None:
    model = two_ranks("scalar", "single")
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(condition), "c"))
    assert parse_onnx(model).output_shapes()[0].array_lens == (() if condition else (1,))
    check(model, [{"a": VALUES["scalar"], "b": VALUES["single"]}], "cpu")


SCALAR, SINGLE = {"x": np.array(2.5, np.float32)}, {"x": np.array([2.5], np.float32)}
FLAG = np.array([True])
HIDDEN = {
    "a vector of an open length as a scalar": (
        [node("Reshape", ["x", "none"], ["s"]), node("Add", ["s", "two"], ["y"])],
        SINGLE,
    ),
    "a vector by its condition alone": (
        [node("Where", ["flag", "x", "x"], ["v"]), node("Unsqueeze", ["v", "zero"], ["y"])],
        SCALAR,
    ),
    "a vector by a constant alone": (
        [node("Sub", ["x", "low"], ["v"]), node("Abs", ["v"], ["w"]), node("Unsqueeze", ["w", "zero"], ["y"])],
        SCALAR,
    ),
    "a scalar and a vector of one kernel": (
        [
            node("Neg", ["x"], ["s"]),
            node("Add", ["s", "low"], ["v"]),
            node("Shape", ["v"], ["lens"]),
            node("Reshape", ["s", "pair"], ["w"]),
            node("Mul", ["v", "w"], ["p"]),
            node("Concat", ["v", "v"], ["c"], axis=0),
            node("Add", ["p", "c"], ["y"]),
        ],
        SCALAR,
    ),
    "a constant matrix of one element without its first axis": (
        [node("ReduceLogSum", ["matrix", "zero"], ["v"], keepdims=0), node("Unsqueeze", ["v", "zero"], ["y"])],
        SCALAR,
    ),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_a_vector_of_one_element_became_a_scalar_where_a_stride_was_lost(name: str, is_open: bool) -> None:
    nodes, feeds = HIDDEN[name]
    extra = {"flag": FLAG, "low": SINGLE["x"], "pair": ints(1, 1), "matrix": np.ones((2, 1), np.float32)}
    model = make_model(nodes, feeds, {"y": FLOAT}, opset=18, constants={**CONSTANTS, **extra})
    check(opened(model, is_open), [feeds], "cpu")


def test_a_body_whose_constant_alone_has_an_axis_failed_to_compile() -> None:
    steps = [node("Cast", ["k"], ["f"], to=FLOAT), node("Sub", ["low", "f"], ["n"])]
    model = growing(steps, "single", False)
    model.graph.initializer.append(onnx.numpy_helper.from_array(SINGLE["x"], "low"))
    feeds = {"x": VALUES["single"], "u": VALUES["single"]}
    check(model, [{**feeds, "trips": np.array(t)} for t in (0, 2)], "cpu")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scan_over_rows_whose_rank_only_a_run_tells_was_refused(axis: int, target: str) -> None:
    then = graph("then", [node("Neg", ["row"], ["t"])], {}, {"t": FLOAT})
    other = graph("else", [node("Unsqueeze", ["row", "zero"], ["e"])], {}, {"e": FLOAT})
    body = graph(
        "body",
        [node("If", ["c"], ["made"], then_branch=then, else_branch=other)],
        {"row": (FLOAT, [4])},
        {"made": FLOAT},
    )
    scan = node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_output_axes=[axis])
    feeds = {"x": normal(3, 4), "c": np.array(True)}
    net = public_program.wrap(parse_onnx(make_model([scan], feeds, {"y": FLOAT}, constants=CONSTANTS))).compile(target)
    for condition in (True, False):  # ONNX Runtime refuses it
        rows = [-row if condition else row[None] for row in feeds["x"]]
        compare(np.asarray(net.run({**feeds, "c": np.array(condition)})[0]), np.stack(rows, axis), 0, 0)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_state_of_scan_may_come_from_an_if_of_two_ranks(target: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[2] s, float[3, 2] x) => (float[2] y, float[3, 2] z) <int64[1] ax = {0}> {
        y, z = Scan <num_scan_inputs = 1, body = b (a, r) => (o, q) {
            o = If (c) <then_branch = t () => (p) { p = Add(a, r) }, else_branch = e () => (u) { u = Unsqueeze(a, ax) }>
            q = Neg(r) }> (s, x) }"""
    model = onnx.parser.parse_model(text)
    s, x = np.float32([1, 2]), np.arange(6, dtype=np.float32).reshape(3, 2)
    found = mgx_numba.parse_onnx(model).compile(target).run({"c": np.array(True), "s": s, "x": x})
    np.testing.assert_array_equal(found[0], s + x.sum(0))
    np.testing.assert_array_equal(found[1], -x)


ROWS = {
    "a loop": "y = Loop (n, t) <body = b (int64 i, bool c) => (d, o) { d = Identity(c) o = Identity(v) }>",
    "a trip count of a run": "u, y = Loop (trips, t, v) <body = b (int64 i, bool c, a) => (d, e, o)"
    " { d = Identity(c) e = Identity(a) o = Neg(v) }>",
    "a loop in a loop": "y = Loop (n, t) <body = b (int64 i, bool c) => (d, o) { d = Identity(c)"
    " o = Loop (n, t) <body = inner (int64 j, bool e) => (f, p) { f = Identity(e) p = Identity(v) }> }>",
    "the last axis of Scan": "y = Scan <num_scan_inputs = 1, scan_output_axes = [-1],"
    " body = b (r) => (o) { o = Add(r, v) }> (z)",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_a_run_shows_to_be_scalars_had_an_axis_on_the_cpu(kind: str, target: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1] x, int64[R] k, float[2] z, int64 trips) => (float[] y) <int64 n = {{2}}, bool t = {{1}}> {{
        v = Reshape(x, k) {ROWS[kind]} }}"""
    model = onnx.parser.parse_model(text)
    net = public_program.wrap(parse_onnx(model, map_dyn_input_dims={"k": [DynamicDimension(0, 4)]})).compile(target)
    z = np.float32([0, 1])
    for lens in ((), (1,), (1, 1)):
        v = np.full(lens, 3, np.float32)
        expected = {
            "a loop": np.stack([v, v]),
            "a trip count of a run": np.stack([-v, -v, -v]),
            "a loop in a loop": np.stack([np.stack([v, v])] * 2),
            "the last axis of Scan": np.stack([v, v + 1], -1),
        }[kind]
        feeds = {"x": np.float32([3]), "k": np.array(lens, np.int64), "z": z, "trips": np.array(3)}
        compare(np.asarray(net.run(feeds)[0]), expected, 0, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_are_scalars_after_a_first_stage_had_an_axis_on_the_cpu(target: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x, float[2, 2] w) => (float[2] y, float[2] z) <int64 n = {2}, bool t = {1}> {
        s = Loop (n, t, x) <body = mean (int64 i, bool c, a) => (d, r)
            { d = Identity(c) r = ReduceMean <keepdims = 0> (a) }>
        u, v = Loop (n, t, s) <body = rows (int64 i, bool c, float a) => (d, float r, float o)
            { d = Identity(c) r = Identity(a) o = Identity(a) }>
        y = Loop (n, t) <body = same (int64 i, bool c) => (d, o) { d = Identity(c) o = Identity(u) }>
        z = MatMul(v, w) }"""
    feeds = {"x": np.float32([[1, 2, 3], [4, 5, 6]]), "w": np.float32([[1, 2], [3, 4]])}
    found = public_program.wrap(parse_onnx(onnx.parser.parse_model(text))).compile(target).run(feeds)
    compare(np.asarray(found[0]), np.float32([3.5, 3.5]), 0, 1e-6)
    compare(np.asarray(found[1]), np.float32([14, 21]), 0, 1e-5)
