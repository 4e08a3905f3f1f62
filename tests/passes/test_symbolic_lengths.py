"""Programs of symbolic lengths pass through the passes once: results are equal for all lengths, without guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.core.shape import UNBOUNDED, DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import MgxError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.constants import constant_array, is_constant
from mgx_numba.graph.module import Module
from mgx_numba.graph.passes import Options, run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.ranges import Ranges
from mgx_numba.graph.substitution import settled
from mgx_numba.graph.symbolic import symbolic_program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.passes import PASSES, SOURCE_PASSES

from ..dynamic.models import FLOAT, MODELS, Feeds, Graph
from ..random_models.generate import generate

OPEN = DynamicDimension(0, UNBOUNDED)
LENGTHS = (0, 1, 2, 3, 5, 8, 19)


def symbolic(model: onnx.ModelProto, lens: Mapping[str, list[int]] | None = None) -> tuple[Program, Scope]:
    """The program for all lengths of the inputs that the model has open; with ``lens`` every dimension is."""
    ranges = None if lens is None else {name: [OPEN] * len(own) for name, own in lens.items()}
    source = parse_onnx(model, map_dyn_input_dims=ranges)
    run_passes(source, SOURCE_PASSES)
    scope = Scope()
    return symbolic_program(source, scope, lens), scope


def options(fast_math: bool, **capabilities: int) -> Options:
    own = pass_options(TargetOptions(fast_math=fast_math, num_threads=2))
    assert own.capabilities is not None
    return replace(own, capabilities=replace(own.capabilities, **capabilities))


def run(program: Program, feeds: Feeds) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in public_program.wrap(program).compile("ref").run(feeds)]


def assert_same_at(program: Program, model: onnx.ModelProto, values: Mapping[Dim, int], feeds: Feeds) -> None:
    """Check that the symbolic program, with ``values`` for its symbols, computes the results of the static model."""
    copy = settled(program, values)
    shapes = {name: list(array.shape) for name, array in feeds.items() if array.ndim}
    wanted = run(parse_onnx(model, map_input_dims=shapes), feeds)
    for result, expected in zip(run(copy, feeds), wanted, strict=True):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        a, b = result.astype(np.float64), expected.astype(np.float64)
        tolerance = 0 if expected.dtype.kind in "biu" else 3e-2 if expected.dtype.itemsize < 4 else 1e-3
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b[np.isfinite(b)]).max(initial=1e-6))


def drawn(program: Program, values: Mapping[Dim, int], rng: np.random.Generator) -> Feeds:
    shapes = {name: [evaluate(n, values) for n in s.lens] for name, s in program.parameter_shapes().items()}
    return {name: rng.standard_normal(lens).astype(np.float32) for name, lens in shapes.items()}


@pytest.mark.parametrize(
    "name", ["fully_convolutional", "shuffle_net", "encoder", "decoder", "recogniser", "two_stages"]
)
def test_passes_ask_nothing_of_models_with_open_dimensions(name: str) -> None:
    case = MODELS[name]()
    program, scope = symbolic(case.model)
    asked = len(scope.guards)
    run_passes(program, PASSES, options(True), validate=True)
    assert list(scope.guards.values())[asked:] == []
    rng, served = np.random.default_rng(0), 0
    for _ in range(8):
        feeds = case.draw(rng)
        values = {}
        for given, shape in program.parameter_shapes().items():
            values.update((n, m) for n, m in zip(shape.lens, feeds[given].shape) if isinstance(n, Dim))
        if min(values.values()) > 0 and evaluate(scope.holds(), values) and served < 2:
            assert_same_at(program, case.model, values, feeds)
            served += 1
    assert served == 2


def quantized_layers() -> tuple[Graph, str]:
    """Build 8-bit products with zero points whose input is a GELU."""
    g = Graph(21)

    def rounded(x: str) -> str:
        given = g.const(np.float32(0.02)), g.const(np.uint8(131))
        return g.op("DequantizeLinear", g.op("QuantizeLinear", x, *given), *given)

    def weights(*lens: int) -> str:
        codes = np.random.default_rng(1).integers(-100, 100, lens).astype(np.int8)
        return g.op("DequantizeLinear", g.const(codes), g.const(np.float32(0.01)), g.const(np.int8(0)))

    y = g.op("Gelu", g.op("Add", g.op("MatMul", rounded("x"), weights(16, 32)), g.weights(32)))
    return g, g.op("Add", g.op("MatMul", rounded(y), weights(32, 16)), g.weights(16))


def products_of_computed_integers() -> tuple[Graph, str]:
    """Both sides have zero points that a run tells, so that sums have a term with the open inner length."""
    g = Graph(17)
    x, _, x_zero = g.op("DynamicQuantizeLinear", "x", outputs=3)
    y, _, y_zero = g.op("DynamicQuantizeLinear", g.op("Transpose", "x", perm=[0, 2, 1]), outputs=3)
    return g, g.op("MatMulInteger", y, x, y_zero, x_zero)


def recurrent() -> tuple[Graph, str]:
    g = Graph(17)
    weights = g.weights(2, 32, 16), g.weights(2, 32, 8), g.weights(2, 64)
    outputs = g.op("LSTM", "x", *weights, outputs=3, hidden_size=8, direction="bidirectional")
    return g, g.op("Add", g.op("ReduceMean", outputs[0], axes=[0], keepdims=0), outputs[1])


def normalised() -> tuple[Graph, str]:
    """Softmax and a variance over open axes, and elements repeated along them."""
    g = Graph(17)
    mean = g.op("ReduceMean", "x", axes=[0, 1])
    d = g.op("Sub", "x", mean)
    y = g.op("Div", d, g.op("Sqrt", g.op("ReduceMean", g.op("Mul", d, d), axes=[0, 1])))
    y = g.op("Add", y, g.op("Softmax", "x", axis=1))
    spread = g.op("Expand", mean, g.op("Shape", "x"))
    return g, g.op("Add", y, g.op("ReduceSum", spread, g.ints(0, 1)))


def sliced() -> tuple[Graph, str]:
    """Slices and gathers of concatenations along an open axis, halves of a product, and rows regrouped."""
    g = Graph(17)
    joined = g.op("Concat", g.op("Slice", "x", g.ints(0), g.ints(1), g.ints(1)), "x", axis=1)
    again = g.op("Slice", joined, g.ints(1), g.ints(1 << 40), g.ints(1))
    a, b = g.op("Split", g.op("MatMul", again, g.weights(16, 64)), axis=2, outputs=2)
    rows = g.op("Gemm", g.op("Reshape", g.op("Mul", g.op("Sigmoid", a), b), g.ints(-1, 32)), g.weights(32, 16))
    y = g.op("Reshape", rows, g.op("Shape", "x"))
    last = g.op("Gather", joined, g.const(np.int64(-1)), axis=1)
    return g, g.op("Add", y, g.op("Unsqueeze", last, g.ints(1)))


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize(
    "made", [quantized_layers, products_of_computed_integers, recurrent, normalised, sliced], ids=lambda f: f.__name__
)
def test_passes_ask_nothing_of_layers_with_open_dimensions(
    made: Callable[[], tuple[Graph, str]], fast_math: bool
) -> None:
    g, result = made()
    model = g.model({"x": (FLOAT, ["a", "b", 16])}, [result])
    program, scope = symbolic(model)
    asked = len(scope.guards)
    run_passes(program, PASSES, options(fast_math), validate=True)
    assert list(scope.guards.values())[asked:] == []
    rng = np.random.default_rng(0)
    for a, b in ((1, 1), (1, 7), (5, 1), (3, 50), (0, 3), (2, 0)):
        values = dict(zip(scope.symbols, (a, b), strict=True))
        refused = made is sliced and not a * b  # a 0 among what a shape is computed of copies a length
        if evaluate(scope.holds(), values) and not refused:
            assert_same_at(program, model, values, drawn(program, values, rng))


@pytest.mark.parametrize("fast_math", [False, True])
def test_reductions_in_parts_are_right_for_fewer_elements_than_parts(fast_math: bool) -> None:
    g, result = normalised()
    model = g.model({"x": (FLOAT, ["a", "b", 16])}, [result, g.op("ReduceMax", "x", axes=[0], keepdims=0)])
    program, scope = symbolic(model)
    own = options(fast_math, part_elements=64, repeated_elements=64, part_share=1, tasks=256, parts=8)
    run_passes(program, PASSES, own, validate=True)
    assert any(ins.name == "reduce_parts" for module in program.reachable_modules() for ins in module)
    assert not scope.guards
    rng = np.random.default_rng(0)
    for a, b in ((1, 1), (1, 5), (3, 1), (2, 7), (40, 100)):
        values = dict(zip(scope.symbols, (a, b), strict=True))
        assert_same_at(program, model, values, drawn(program, values, rng))


@pytest.mark.parametrize("seed", [1, 49, 69, 74, 203])
def test_random_models_with_symbolic_lengths(seed: int) -> None:
    case = generate(seed)
    lens = {name: list(array.shape) for name, array in case.feeds.items() if array.ndim}
    program, scope = symbolic(case.model, lens)
    run_passes(program, PASSES, options(seed % 2 == 0), validate=True)
    assert_same_at(program, case.model, scope.hints(), case.feeds)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        values = {symbol: int(rng.choice(LENGTHS)) for symbol in scope.symbols}
        if not evaluate(scope.holds(), values):
            continue
        shapes = {name: [evaluate(n, values) for n in s.lens] for name, s in program.parameter_shapes().items()}
        if min(n for own in shapes.values() for n in own) < 0:
            continue
        feeds = {name: np.resize(a, shapes[name]) if a.ndim else a for name, a in case.feeds.items()}
        try:
            run(parse_onnx(case.model, map_input_dims={name: shapes[name] for name in lens}), feeds)
        except MgxError:  # the model has no results for these lengths
            continue
        assert_same_at(program, case.model, values, feeds)


@pytest.mark.parametrize(("factor", "left"), [(2.0, 0), (4.0, 0), (3.0, 1)])
def test_images_of_symbolic_lengths_are_repeated(factor: float, left: int) -> None:
    """Factors that are no powers of two give rounded coordinates, which depend on the length."""
    g = Graph(17)
    scales = g.const(np.float32([1, 1, factor, factor]))
    ways = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    model = g.model({"x": (FLOAT, [1, 4, "h", "w"])}, [g.op("Resize", "x", "", scales, mode="nearest", **ways)])
    program, scope = symbolic(model)
    run_passes(program, PASSES, options(False), validate=True)
    assert sum(ins.name == "resize" for ins in program.main) == left
    rng = np.random.default_rng(0)
    for h, w in ((1, 1), (3, 5), (70, 2)):
        values = dict(zip(scope.symbols, (h, w), strict=True))
        assert_same_at(program, model, values, drawn(program, values, rng))


def test_a_length_that_constants_determine_is_a_number() -> None:
    """A length that an operator compares with a number becomes that number in the program."""
    g = Graph(17)
    model = g.model({"x": (FLOAT, ["a", "b", "c"])}, [g.op("MatMul", "x", g.weights(16, 8))])
    program, _ = symbolic(model, {"x": [2, 3, 16]})
    assert program.parameter_shapes()["x"].lens[2] == 16
    assert type(program.parameter_shapes()["x"].lens[2]) is int


def test_symbols_of_an_earlier_stage_stay() -> None:
    """A later stage takes lengths for equal without making the symbols of its scope anew."""
    scope = Scope()
    earlier = scope.symbol("earlier", 1)
    g = Graph(17)
    model = g.model({"x": (FLOAT, ["a", "b"])}, [g.op("MatMul", "x", g.weights(16, 8))])
    later = symbolic_program(parse_onnx(model), scope, {"x": [3, 16]})
    assert scope.symbols[0] is earlier
    assert [n in dict.fromkeys(scope.symbols) for n in later.parameter_shapes()["x"].lens] == [True, True]


def test_constants_seen_with_symbolic_lengths() -> None:
    """A constant that repeats along a symbolic axis is seen with length 1 there; other repetition has no array."""
    scope = Scope()
    n = scope.symbol("n", 1)
    module = Module("main")
    row = module.add_literal(np.arange(6, dtype=np.float32).reshape(1, 6))
    wide = module.add_instruction("multibroadcast", [row], out_lens=(n, 6))
    turned = module.add_instruction("transpose", [wide], permutation=(1, 0))
    apart = module.add_instruction("unsqueeze", [wide], axes=(1,))
    flat = module.add_instruction("reshape", [wide], dims=(6 * n,))
    part = module.add_instruction("slice", [row], axes=(1,), starts=(0,), ends=(n,))
    number = module.add_literal(np.float32(2))
    numbers = module.add_instruction("multibroadcast", [number], out_lens=(n, 3))
    same = module.add_instruction("reshape", [numbers], dims=(3 * n,))
    lens = [None if (array := constant_array(v)) is None else array.shape for v in (wide, turned, apart, flat, part)]
    assert lens == [(1, 6), (6, 1), (1, 1, 6), None, None]
    assert all(map(is_constant, (flat, part)))
    np.testing.assert_array_equal(constant_array(same), [2])
    assert not scope.guards


def test_ranges_of_positions_along_symbolic_axes() -> None:
    scope = Scope()
    n, m = scope.symbol("n", 1, 100), scope.symbol("m", 1)
    module = Module("main")
    x = module.add_parameter("x", Shape(Type.float_type, (n, m)))
    first, second = (module.add_instruction("argmax", [x], axis=axis) for axis in (0, 1))
    assert Ranges().span(first)[1:] == (0, 99)
    assert Ranges().span(second).within(0, UNBOUNDED)
    assert not scope.guards
