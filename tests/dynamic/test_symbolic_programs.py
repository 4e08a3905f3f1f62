"""Symbolic programs, with numbers in place of the symbols, compute the results of specialised programs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mgx_numba.core.dim import Dim, Scope, SymbolicLengthError
from mgx_numba.core.shape import UNBOUNDED, DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.graph.symbolic import symbolic_program

from ..random_models.generate import generate
from .models import FLOAT, INT64, MODELS, Graph
from .symbolic_runs import assert_like_specialized, bound, simplified, symbolic

DRAWS = 4
WITHOUT_GUARDS = ("fully_convolutional", "shuffle_net", "encoder", "decoder", "single_shot", "two_stages")


@pytest.mark.parametrize("name", MODELS)
def test_models_with_open_dimensions(name: str) -> None:
    case = MODELS[name]()
    if name in WITHOUT_GUARDS:
        some = parse_onnx(case.model, default_dyn_dim_value=DynamicDimension(1, UNBOUNDED))
        assert not symbolic(simplified(some))[1].guards
    program = simplified(parse_onnx(case.model))
    made, scope = symbolic(program)
    rng = np.random.default_rng(1)
    served = 0
    for _ in range(DRAWS):
        feeds = case.draw(rng)
        values, own = bound(made, scope, feeds), made
        served += values is not None
        if values is None:  # an empty cache, say
            lens = {n: feeds[n].shape for n, s in program.parameter_shapes().items() if s.is_dynamic}
            own, others = symbolic(program, lens)
            values = bound(own, others, feeds)
            assert values is not None
        assert_like_specialized(program, own, values, feeds)
    assert served


@pytest.mark.parametrize("seed", range(300, 316))
def test_random_models(seed: int) -> None:
    """Dimensions of equal lengths have one name. What cannot be symbolic says so."""
    case = generate(seed)
    rng = np.random.default_rng(seed)
    dims = {}
    for name, array in case.feeds.items():
        symbols = [f"n{n}" if rng.random() < 0.7 else "" for n in array.shape]
        dims[name] = [DynamicDimension(0, UNBOUNDED, symbol=symbol) for symbol in symbols]
    program = simplified(parse_onnx(case.model, map_dyn_input_dims={n: d for n, d in dims.items() if d}))
    lens = {n: case.feeds[n].shape for n, s in program.parameter_shapes().items() if s.is_dynamic}
    for given in (None, lens):
        try:
            made, scope = symbolic(program, given)
        except SymbolicLengthError:
            continue
        values = bound(made, scope, case.feeds)
        assert values is not None or given is None
        if values is not None:
            assert_like_specialized(program, made, values, case.feeds)


def cached_decoder(layers: int = 1) -> onnx.ModelProto:
    """A decoder as transformers exports it: positions by Range and Gather, an attention mask of open length that is
    expanded and joined with a causal one by Less, Where and Slice, rotary tables, and a cache that grows."""
    g = Graph()
    heads, size = 2, 8
    width = heads * size
    n, t, past = g.dim("ids", 0), g.dim("ids", 1), g.dim("past_0", 2)
    total = g.op("Add", past, t)
    scalar = [g.op("Squeeze", v, g.ints(0)) for v in (past, total)]
    one = g.const(np.int64(1))
    queries = g.op("Range", scalar[0], scalar[1], one)
    keys = g.op("Range", g.const(np.int64(0)), scalar[1], one)
    later = g.op("Greater", g.op("Unsqueeze", keys, g.ints(0)), g.op("Unsqueeze", queries, g.ints(1)))
    allowed = g.op("Cast", g.op("Slice", "mask", g.ints(0), total, g.ints(1)), to=TensorProto.BOOL)
    allowed = g.op("Expand", g.op("Unsqueeze", allowed, g.ints(1, 2)), g.vector(n, 1, t, total))
    hidden = g.op("Or", g.op("Not", allowed), later)
    bias = g.op("Where", hidden, g.const(np.float32(-1e9)), g.const(np.float32(0)))
    angles = g.op("Mul", g.op("Cast", g.op("Unsqueeze", queries, g.ints(1)), to=FLOAT), g.weights(1, size // 2))
    angles = g.op("Concat", angles, angles, axis=-1)
    cosine, sine = g.op("Cos", angles), g.op("Sin", angles)
    y = g.op("Gather", g.weights(20, width), "ids")
    y = g.op("Add", y, g.op("Gather", g.weights(64, width), queries))

    def split(x: str) -> str:
        return g.op("Transpose", g.op("Reshape", x, g.vector(n, t, heads, size)), perm=[0, 2, 1, 3])

    def rotated(x: str) -> str:
        first, second = g.op("Split", x, g.ints(size // 2, size // 2), axis=-1, outputs=2)
        turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return g.op("Add", g.op("Mul", x, cosine), g.op("Mul", turned, sine))

    caches = []
    for layer in range(layers):
        q, k, v = (split(g.op("MatMul", y, g.weights(width, width))) for _ in range(3))
        k = g.op("Concat", f"past_{2 * layer}", rotated(k), axis=2)
        v = g.op("Concat", f"past_{2 * layer + 1}", v, axis=2)
        caches += [k, v]
        scores = g.op("Add", g.op("MatMul", rotated(q), g.op("Transpose", k, perm=[0, 1, 3, 2])), bias)
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        joined = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))
        y = g.op("Add", y, g.op("MatMul", joined, g.weights(width, width)))
    last = g.op("Gather", y, g.const(np.int64(-1)), axis=1)
    cache = (FLOAT, ["batch", heads, "past", size])
    shapes = {"ids": (INT64, ["batch", "tokens"]), "mask": (INT64, ["batch", "total"])}
    return g.model(shapes | {f"past_{k}": cache for k in range(2 * layers)}, [last, *caches])


def test_a_decoder_with_a_cache_asks_nothing() -> None:
    program = simplified(parse_onnx(cached_decoder(2)))
    made, scope = symbolic(program)
    assert not scope.guards
    assert not any(ins.shape.is_dynamic for ins in made.main)
    rng = np.random.default_rng(0)
    for n, t, p in ((1, 1, 5), (2, 3, 1), (1, 1, 1), (3, 2, 11)):
        cache = {f"past_{k}": rng.standard_normal((n, 2, p, 8)).astype(np.float32) for k in range(4)}
        feeds = {"ids": rng.integers(0, 20, (n, t)), "mask": rng.integers(0, 2, (n, t + p)), **cache}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)


def lens_of(program: Program, name: str) -> list[str]:
    return [str(n) for n in program.parameter_shapes()[name].lens]


def test_a_name_that_is_an_expression_of_names_is_that_length() -> None:
    g = Graph()
    y = g.op("Add", g.op("Concat", "past", "x", axis=1), "mask")
    shapes = {"mask": (FLOAT, ["n", "past + t"]), "past": (FLOAT, ["n", "past"]), "x": (FLOAT, ["n", "t"])}
    made, scope = symbolic(simplified(parse_onnx(g.model(shapes, [y]))))
    assert [str(s) for s in scope.symbols] == ["n", "past", "t"]
    assert sorted(lens_of(made, "mask")[1].split(" + ")) == ["past", "t"]
    assert not scope.guards


def test_a_length_that_others_determine_is_their_expression() -> None:
    g = Graph()
    y = g.op("Add", g.op("Concat", "past", "x", axis=1), "mask")
    shapes = {"past": (FLOAT, ["n", "past"]), "x": (FLOAT, ["n", "t"]), "mask": (FLOAT, ["m", "total"])}
    program = simplified(parse_onnx(g.model(shapes, [y])))
    made, scope = symbolic(program)
    assert lens_of(made, "mask")[0] == "n" and sorted(lens_of(made, "mask")[1].split(" + ")) == ["past", "t"]
    feeds = {"past": np.ones((2, 3), np.float32), "x": np.ones((2, 1), np.float32), "mask": np.ones((2, 4), np.float32)}
    values = bound(made, scope, feeds)
    assert values is not None
    assert_like_specialized(program, made, values, feeds)
    feeds["mask"] = np.ones((1, 4), np.float32)  # is repeated: another plan's
    assert bound(made, scope, feeds) is None
    other, others = symbolic(program, {name: a.shape for name, a in feeds.items()})
    values = bound(other, others, feeds)
    assert values is not None
    assert_like_specialized(program, other, values, feeds)


def test_names_that_the_inputs_contradict_are_not_believed() -> None:
    g = Graph()
    y = g.op("Concat", "a", "b", axis=0)
    program = simplified(parse_onnx(g.model({"a": (FLOAT, ["n"]), "b": (FLOAT, ["n"])}, [y])))
    made, scope = symbolic(program)
    feeds = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    assert bound(made, scope, feeds) is None
    made, scope = symbolic(program, {"a": (2,), "b": (3,)})
    values = bound(made, scope, feeds)
    assert values is not None
    assert_like_specialized(program, made, values, feeds)


def test_lengths_as_data_are_lengths_instructions() -> None:
    g = Graph()
    t = g.dim("x", 1)
    mean = g.op("Div", g.op("ReduceSum", "x", g.ints(1), keepdims=0), g.op("Cast", t, to=FLOAT))
    shapes = g.op("Shape", "x")
    program = simplified(parse_onnx(g.model({"x": (FLOAT, ["n", "t"])}, [mean, shapes, g.op("Size", "x")])))
    made, scope = symbolic(program)
    held = [ins.op for ins in made.main if ins.name == "lengths"]
    n, t_symbol = scope.symbols
    assert {op.values for op in held} >= {(t_symbol,), (n, t_symbol), (n * t_symbol,)}  # type: ignore[attr-defined]
    feeds = {"x": np.arange(15, dtype=np.float32).reshape(3, 5)}
    values = bound(made, scope, feeds)
    assert values is not None
    assert_like_specialized(program, made, values, feeds)


def test_a_condition_that_lengths_decide_is_a_guard() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], ["y"])], name, [], [onnx.ValueInfoProto(name="y")])

    g = Graph()
    long = g.op("Squeeze", g.op("Greater", g.dim("x", 0), g.ints(8)), g.ints(0))
    y = g.op("If", long, then_branch=branch("then", "Neg"), else_branch=branch("else", "Abs"))
    program = simplified(parse_onnx(g.model({"x": (FLOAT, ["n"])}, [y])))
    made, scope = symbolic(program)
    assert len(scope.guards) == 1 and not any(ins.name == "if" for ins in made.main)
    for count in (1, 8, 9, 100):
        feeds = {"x": np.linspace(-1, 1, count, dtype=np.float32)}
        values = bound(made, scope, feeds)
        assert (values is None) == (count <= 8)
        if values is not None:
            assert_like_specialized(program, made, values, feeds)


def test_ranges_up_down_and_of_floats() -> None:
    g = Graph()
    n = g.op("Squeeze", g.dim("x", 0), g.ints(0))
    zero, minus = g.const(np.int64(0)), g.const(np.int64(-2))
    down = g.op("Range", n, zero, minus)
    steps = g.op("Range", zero, n, g.const(np.int64(3)))
    half = g.op("Range", g.const(np.float32(1)), g.op("Cast", n, to=FLOAT), g.const(np.float32(2)))
    narrow = g.op("Range", *(g.op("Cast", v, to=TensorProto.INT32) for v in (zero, n, g.const(np.int64(1)))))
    program = simplified(parse_onnx(g.model({"x": (FLOAT, ["n"])}, [down, steps, half, narrow])))
    made, scope = symbolic(program)
    for count in (1, 2, 3, 7, 30):
        feeds = {"x": np.zeros(count, np.float32)}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)


def test_sizes_of_resize_that_are_computed_in_floats() -> None:
    """Halves and doubles of lengths are followed, a third is not."""

    def model(factor: float) -> onnx.ModelProto:
        g = Graph()
        lens = g.op("Cast", g.op("Slice", g.op("Shape", "x"), g.ints(2), g.ints(4)), to=FLOAT)
        sizes = g.op("Cast", g.op("Floor", g.op("Mul", lens, g.const(np.float32(factor)))), to=INT64)
        sizes = g.op("Concat", g.op("Slice", g.op("Shape", "x"), g.ints(0), g.ints(2)), sizes, axis=0)
        y = g.op("Resize", "x", "", "", sizes, mode="nearest", coordinate_transformation_mode="asymmetric")
        return g.model({"x": (FLOAT, [1, 2, "h", "w"])}, [y])

    rng = np.random.default_rng(0)
    for factor in (2.0, 0.5, 1.5):
        program = simplified(parse_onnx(model(factor)))
        made, scope = symbolic(program)
        for h, w in ((2, 3), (7, 4)):
            feeds = {"x": rng.standard_normal((1, 2, h, w)).astype(np.float32)}
            values = bound(made, scope, feeds)
            assert values is not None
            assert_like_specialized(program, made, values, feeds)
    with pytest.raises(SymbolicLengthError):
        symbolic(simplified(parse_onnx(model(1 / 3))))


def test_constants_with_symbolic_lengths_are_not_folded() -> None:
    g = Graph()
    filled = g.op("ConstantOfShape", g.op("Shape", "x"), value=numpy_helper.from_array(np.ones(1, np.float32)))
    program = simplified(
        parse_onnx(g.model({"x": (FLOAT, ["n", "t"])}, [g.op("Exp", g.op("CumSum", filled, g.ints(1)))]))
    )
    made, scope = symbolic(program)
    assert any(isinstance(n, Dim) for n in made.main.results()[0].shape.lens)
    feeds = {"x": np.zeros((2, 3), np.float32)}
    values = bound(made, scope, feeds)
    assert values is not None
    assert_like_specialized(program, made, values, feeds)


def test_a_program_that_no_lengths_fit_cannot_be_symbolic() -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(1, 9), 3]))
    y = program.main.add_literal(np.ones((1, 4), np.float32))
    program.main.add_return([program.main.add_instruction("concat", [x, x], axis=1), y])
    assert symbolic_program(program, Scope())
    y = program.main.add_parameter("y", Shape.dynamic(Type.float_type, [DynamicDimension(1, 9)]))
    with pytest.raises((ShapeError, SymbolicLengthError)):
        program.main.add_instruction("dot", [x, y])


@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_max_pooling(order: int) -> None:
    g = Graph()
    y, places = g.op(
        "MaxPool", "x", kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1], storage_order=order, outputs=2
    )
    program = simplified(parse_onnx(g.model({"x": (FLOAT, ["n", 2, "h", "w"])}, [y, places])))
    made, scope = symbolic(program)
    rng = np.random.default_rng(0)
    for lens in ((1, 2, 5, 4), (3, 2, 2, 7)):
        feeds = {"x": rng.standard_normal(lens).astype(np.float32)}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_samples_of_a_grid(padding: str, align: int) -> None:
    g = Graph()
    y = g.op("GridSample", "x", "grid", mode="bilinear", padding_mode=padding, align_corners=align)
    shapes = {"x": (FLOAT, ["n", 2, "h", "w"]), "grid": (FLOAT, ["n", "p", "q", 2])}
    program = simplified(parse_onnx(g.model(shapes, [y])))
    made, scope = symbolic(program)
    rng = np.random.default_rng(0)
    for n, h, w in ((1, 4, 5), (2, 7, 3)):
        grid = rng.uniform(-1.3, 1.3, (n, 3, 4, 2)).astype(np.float32)
        feeds = {"x": rng.standard_normal((n, 2, h, w)).astype(np.float32), "grid": grid}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_that_keep_lengths(auto_pad: str) -> None:
    g = Graph()
    y = g.op("Conv", "x", g.weights(3, 2, 3, 4), strides=[2, 3], auto_pad=auto_pad)
    z = g.op("MaxPool", "x", kernel_shape=[3, 2], strides=[1, 1], auto_pad=auto_pad)
    program = simplified(parse_onnx(g.model({"x": (FLOAT, [1, 2, "h", "w"])}, [y, g.op("Add", z, "x")])))
    made, scope = symbolic(program)
    rng = np.random.default_rng(0)
    for h, w in ((4, 3), (5, 7), (6, 8), (1, 1)):
        feeds = {"x": rng.standard_normal((1, 2, h, w)).astype(np.float32)}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)


def bodies() -> onnx.ModelProto:
    """A scan along an open axis, a loop of as many iterations whose state grows, and a branch that data choose; all use
    values from outside."""

    def graph(name: str, nodes: list[onnx.NodeProto], inputs: list[tuple], outputs: list[str]) -> onnx.GraphProto:
        given = [helper.make_tensor_value_info(n, t, d) for n, t, d in inputs]
        return helper.make_graph(nodes, name, given, [onnx.ValueInfoProto(name=n) for n in outputs])

    node = helper.make_node
    g = Graph()
    step = [node("Add", ["state", "row"], ["next"]), node("Mul", ["next", "row"], ["out"])]
    inputs = [("state", FLOAT, None), ("row", FLOAT, None)]
    scan = graph("scan", step, inputs, ["next", "out"])
    zeros = g.op("ConstantOfShape", g.dim("x", 1))
    state, rows = g.op("Scan", zeros, "x", outputs=2, body=scan, num_scan_inputs=1)
    grow = [node("Concat", ["have", "x"], ["more"], axis=0), node("Identity", ["go"], ["on"])]
    inputs = [("i", INT64, []), ("go", TensorProto.BOOL, []), ("have", FLOAT, None)]
    loop = graph("loop", grow, inputs, ["on", "more"])
    trips = g.op("Squeeze", g.dim("x", 0), g.ints(0))
    grown = g.op("Loop", trips, g.const(np.array(True)), "x", body=loop)
    branches = [graph(n, [node(op, ["x"], [f"{n}_y"])], [], [f"{n}_y"]) for n, op in (("a", "Neg"), ("b", "Abs"))]
    positive = g.op("Greater", g.op("ReduceSum", "x", keepdims=0), g.const(np.float32(0)))
    chosen = g.op("If", positive, then_branch=branches[0], else_branch=branches[1])
    return g.model({"x": (FLOAT, ["n", "t"])}, [state, rows, grown, chosen])


def test_bodies_of_scans_loops_and_branches() -> None:
    program = simplified(parse_onnx(bodies()))
    made, scope = symbolic(program)
    rng = np.random.default_rng(0)
    for n, t in ((2, 3), (5, 1), (1, 4)):
        feeds = {"x": rng.standard_normal((n, t)).astype(np.float32)}
        values = bound(made, scope, feeds)
        assert values is not None
        assert_like_specialized(program, made, values, feeds)
    scanned = next(ins for ins in made.main if ins.name == "loop" and ins.shape.sub_shapes[1].lens)
    assert scanned.op.max_iterations is scope.symbols[0]  # type: ignore[attr-defined]


def test_example_lengths_are_larger_where_a_program_takes_the_best_of_many() -> None:
    g = Graph()
    best, _ = g.op("TopK", "x", g.ints(150), outputs=2)
    program = simplified(parse_onnx(g.model({"x": (FLOAT, ["n"])}, [best])))
    made, scope = symbolic(program)
    assert lens_of(made, "x") == ["n"]
    for count, served in ((149, False), (150, True), (400, True)):
        feeds = {"x": np.random.default_rng(0).standard_normal(count).astype(np.float32)}
        values = bound(made, scope, feeds)
        assert (values is not None) == served
        if values is not None:
            assert_like_specialized(program, made, values, feeds)


def test_example_lengths_of_long_ranges_differ() -> None:
    g = Graph()
    long = DynamicDimension(224, 1024)
    model = g.model({"x": (FLOAT, ["n", "h", "w"])}, [g.op("Relu", "x")])
    program = simplified(parse_onnx(model, default_dyn_dim_value=long))
    scope = symbolic(program)[1]
    assert len(set(scope.hints().values())) == 3 and min(scope.hints().values()) >= 224
