"""Quantisation to 8 and 4 bits in the graph, and QDQ pairs as integer contractions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.constants import is_constant
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.observers import QuantParameters
from mgx_numba.graph.passes import integer_products
from mgx_numba.graph.passes.autocast_fp8 import AutocastFp8
from mgx_numba.graph.passes.base import Options, make_pass, run_passes
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.passes.quantization_plan import ValuePlan, calibrated_values
from mgx_numba.graph.passes.quantize_8bits import Quantize8Bits
from mgx_numba.graph.passes.quantize_int4_weights import BLOCK, QuantizeInt4
from mgx_numba.graph.passes.rewrite_quantization import RewriteQuantization
from mgx_numba.graph.passes.rewrite_requantization import RewriteRequantization
from mgx_numba.graph.passes.selection import Selection
from mgx_numba.graph.passes.simplify_qdq import SimplifyQdq
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from .support import FAST, STRICT, Graph, check, find, names, random_inputs

CHOSEN = Selection(["dot", "convolution"])


def quantized(g: Graph, x: Instruction, scale: float, zero: int | None, type: str = "uint8") -> Instruction:
    """``dequantizelinear(quantizelinear(x))``."""
    kind = Type[f"{type}_type"]
    points = [] if zero is None else [g.spread(g.lit(zero, type), *x.shape.lens)]
    step = g.spread(g.lit(scale), *x.shape.lens)
    out = {} if points else {"out_type": kind}
    return g.op("dequantizelinear", g.op("quantizelinear", x, step, *points, **out), step, *points)


def weights(g: Graph, lens: tuple[int, ...], axis: int, zero: int | None = None, type: Any = np.int8) -> Instruction:
    rng = np.random.default_rng(lens)
    limits = np.iinfo(type)
    q = rng.integers(max(limits.min, -120), min(limits.max, 240), lens).astype(type)
    scales = g.lit(rng.uniform(0.001, 0.02, lens[axis]))
    points = [] if zero is None else [g.spread(g.lit(zero, type), *lens)]
    spread = g.op("broadcast", scales, axis=axis % len(lens), out_lens=lens)
    return g.op("dequantizelinear", g.lit(q, type), spread, *points)


LEFT = [(0.02, 0, "uint8"), (0.013, 77, "uint8"), (0.02, -5, "int8"), (0.02, None, "int8"), (0.02, None, "uint8")]


@pytest.mark.parametrize("scale, zero, type", LEFT)
def test_products_of_quantised_values(scale: float, zero: int | None, type: str) -> None:
    for lens, k, n in (((5,), 7, 3), ((2, 3), 33, 5), ((1,), 1, 1)):
        g = Graph()
        x = quantized(g, g.param("x", [*lens, k]), scale, zero, type)
        w = weights(g, (k, n), 1)
        if len(lens) == 2:
            w = weights(g, (1, k, n), 2)
            w = g.op("multibroadcast", w, out_lens=(lens[0], k, n))
        after = check(g.ret(g.op("dot", x, w)), SimplifyQdq(), OptimizeModule(), rtol=1e-5, atol=1e-4)
        assert "quant_dot" in names(after) and "dot" not in names(after)
        assert [i.shape.type for i in find(after, "quant_dot").inputs] == [Type.uint8_type, Type.int8_type]
        assert names(after).count("quantizelinear") == 1 and "convert" not in names(after)


@pytest.mark.parametrize("zero, type", [("uint8", "uint8"), ("int8", "int8"), (None, "uint8"), (0, "int8")])
@pytest.mark.parametrize(
    "lens, viewed", [((5, 33), ()), ((1, 8), ()), ((2, 3, 7), ()), ((2, 3, 7), (6, 7)), ((6, 7), (2, 3, 7))]
)
def test_products_of_values_with_a_computed_scale(
    zero: str | int | None, type: str, lens: tuple[int, ...], viewed: tuple[int, ...]
) -> None:
    g = Graph()
    x, scale = g.param("x", lens), g.op("add", g.op("abs", g.param("scale", [1])), g.lit([0.01]))
    point = g.param("zero", [1], type) if isinstance(zero, str) else g.lit([0], type)
    points = [] if zero is None else [g.spread(point, *lens)]
    step, out = g.spread(scale, *lens), {} if points else {"out_type": Type[f"{type}_type"]}
    x = g.op("dequantizelinear", g.op("quantizelinear", x, step, *points, **out), step, *points)
    x = g.op("reshape", x, dims=viewed) if viewed else x
    outer = (viewed or lens)[:-2]
    w = weights(g, (*(1 for _ in outer), lens[-1], 6), -1, zero=3)
    w = g.op("multibroadcast", w, out_lens=(*outer, lens[-1], 6)) if outer else w
    after = check(g.ret(g.op("dot", x, w)), SimplifyQdq(), OptimizeModule(), rtol=1e-5, atol=1e-4)
    assert "quant_dot" in names(after) and "dot" not in names(after)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("activation, zero", [("relu", 0), ("tanh", 128), ("abs", 255)])
def test_what_is_quantised_twice_is_quantised_from_the_value_twice(activation: str, zero: int, order: int) -> None:
    """The finer steps clip numbers that the coarser steps do not."""
    g = Graph()
    x = g.op(activation, g.param("x", [1, 3, 6, 4]))
    makers = [
        lambda: quantized(g, g.op("pooling", x, lengths=(2, 2), stride=(2, 2), mode="max"), 0.001, zero),
        lambda: quantized(g, g.op("concat", x, g.random(1, 2, 6, 4), axis=1), 0.03, 128),
        lambda: quantized(g, x, 0.02, 100),
        lambda: quantized(g, x, 0.008, 0, "int8"),
    ]
    program = g.ret(*(make() for make in makers[::order]))
    check(program, SimplifyQdq(), OptimizeModule(), options=FAST, rtol=0, atol=0)


@pytest.mark.parametrize("scale, zero, type", LEFT)
@pytest.mark.parametrize("padding", [(0, 0), (1, 2), (2, 0, 1, 1)])
@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_of_quantised_values(
    scale: float, zero: int | None, type: str, padding: tuple[int, ...], group: int
) -> None:
    g = Graph()
    x = quantized(g, g.param("x", [2, 8, 7, 9]), scale, zero, type)
    y = g.op("convolution", x, weights(g, (6, 8 // group, 3, 2), 0), padding=padding, stride=(2, 1), group=group)
    after = check(g.ret(y), SimplifyQdq(), OptimizeModule(), rtol=1e-5, atol=1e-4)
    assert "quant_convolution" in names(after) and "convolution" not in names(after)


def transposed(type: str = "uint8", zero: int = 0, axis: int = 1, **attributes: Any) -> Program:
    g = Graph()
    x = quantized(g, g.param("x", [2, 6, 5, 4]), 0.02, zero, type)
    attributes = {"stride": (3, 2), **attributes}
    w = weights(g, (6, 8, 3, 2), axis)
    return g.ret(g.op("convolution_backwards", x, w, **attributes))


SCATTERING = replace(FAST, capabilities=replace(pass_options(TargetOptions()).capabilities, scattered_integers=True))
"""Options of a target that computes transposed convolutions of integers."""


def test_transposed_convolutions_of_quantised_values() -> None:
    for attributes in ({}, {"stride": (2, 2)}, {"padding": (1, 0)}, {"dilation": (2, 1)}):
        program = transposed(**attributes)
        after = check(program, SimplifyQdq(), OptimizeModule(), options=SCATTERING, rtol=1e-5, atol=1e-4)
        assert "quant_convolution_backwards" in names(after) and "convolution_backwards" not in names(after)
    for program, options in (
        (transposed(), FAST),
        (transposed(zero=3), SCATTERING),
        (transposed("int8"), SCATTERING),
        (transposed(axis=0), SCATTERING),
        (transposed(group=2), SCATTERING),
    ):
        after = check(program, SimplifyQdq(), OptimizeModule(), options=options, rtol=1e-5, atol=1e-4)
        assert "convolution_backwards" in names(after)


@pytest.mark.parametrize("type, zero, point", [("uint8", 0, 0), ("uint8", 128, 3), ("int8", 0, -20)])
def test_8_bits_are_requantised_by_one_factor_where_it_rounds_alike(type: str, zero: int, point: int) -> None:
    rng = np.random.default_rng(zero)
    every, divided = np.arange(256).astype(type), 0
    scales = [*rng.uniform(0.01, 0.2, (8, 2)), (3.0, 2.0), (0.1, 0.2), (1e30, 1e-30)]
    for first, second in scales:
        g = Graph()
        x = g.param("x", [256], type)
        own, other = (g.spread(g.lit(scale, np.float32), 256) for scale in (first, second))
        value = g.op("dequantizelinear", x, own, g.spread(g.lit(zero, type), 256))
        steps = g.op("quantizelinear", value, other, g.spread(g.lit(point, type), 256))
        program = g.ret(steps)
        (expected,) = evaluate(program, {"x": every})
        run_passes(program, [RewriteQuantization()], STRICT)
        np.testing.assert_array_equal(evaluate(program, {"x": every})[0], expected)
        divided += names(program).count("div")
    assert divided < len(scales) // 2


def test_weights_with_a_zero_point_that_int8_has_room_for() -> None:
    for zero, type, fits in ((128, np.uint8, True), (3, np.int8, True), (0, np.uint8, False), (-30, np.int8, False)):
        g = Graph()
        x = quantized(g, g.param("x", [4, 40]), 0.02, 100)
        w = weights(g, (40, 6), 1, zero, type)
        after = check(g.ret(g.op("dot", x, w)), SimplifyQdq(), rtol=1e-5, atol=1e-4)
        assert ("quant_dot" in names(after)) == fits


def test_what_is_no_product_of_integers_stays() -> None:
    def left(build: Any) -> list[str]:
        g = Graph()
        x = quantized(g, g.param("x", [1, 4, 6, 6]), 0.02, 10)
        return names(check(g.ret(build(g, x)), SimplifyQdq(), rtol=1e-5, atol=1e-4))

    assert "convolution" in left(lambda g, x: g.op("convolution", x, g.random(2, 4, 3, 3)))
    assert "convolution" in left(lambda g, x: g.op("convolution", x, weights(g, (4, 1, 3, 3), 0), group=4))
    assert "convolution" in left(lambda g, x: g.op("convolution", x, weights(g, (3, 4, 3, 3), 1)))
    assert "dot" in left(lambda g, x: g.op("dot", x, x))


def test_values_are_viewed_before_they_are_dequantised() -> None:
    g = Graph()
    w = g.op("transpose", weights(g, (5, 12), 0), permutation=(1, 0))
    x = g.op("reshape", quantized(g, g.param("x", [3, 4, 3]), 0.02, 9), dims=(3, 12))
    after = check(g.ret(g.op("dot", x, w)), SimplifyQdq(), rtol=1e-5, atol=1e-4)
    assert "quant_dot" in names(after)
    g = Graph()
    w = g.op("reshape", weights(g, (5, 12), 0), dims=(12, 5))
    assert "dot" in names(check(g.ret(g.op("dot", g.param("x", [3, 12]), w)), SimplifyQdq(), rtol=1e-5, atol=1e-4))


def network() -> Program:
    g = Graph()
    x = g.param("x", [2, 8, 6, 6])
    y = g.op("relu", g.op("convolution", x, g.random(6, 8, 3, 3), padding=(1, 1)))
    z = g.op("dot", g.op("reshape", y, dims=(2, 216)), g.random(216, 10))
    return g.ret(z)


@pytest.mark.parametrize("type", [Type.uint8_type, Type.int8_type, Type.fp8e4m3fn_type])
def test_inserted_pairs(type: Type) -> None:
    program = network()
    values = calibrated_values(program, CHOSEN)
    assert [v.name for v in values] == ["@param", "reshape"]
    limit = 448 if type is Type.fp8e4m3fn_type else 127
    known = [QuantParameters(4 / 255, 128), QuantParameters(30 / 255, 0)]
    if type is not Type.uint8_type:
        known = [QuantParameters(size / limit, 0, type) for size in (2, 30)]
    step = Quantize8Bits({v: ValuePlan(p) for v, p in zip(values, known)}, CHOSEN)
    before, inputs = program.clone(), random_inputs(program)
    run_passes(program, [step, "dead_code_elimination"], Options(), validate=True)
    assert [c.choice for c in step.choices] == ["int8" if limit == 127 else "e4m3fn"] * 2
    assert "scale" in str(step.choices[0]) and step.choices[0].weight_error < (0.01 if limit == 127 else 0.05)
    expected, found = evaluate(before, inputs)[0], evaluate(program, inputs)[0]
    assert np.linalg.norm(found - expected) < (0.02 if limit == 127 else 0.06) * np.linalg.norm(expected)
    assert not any(i.literal and i.shape.type is Type.float_type and i.shape.elements > 50 for i in program.main)
    after = check(program, SimplifyQdq(), RewriteQuantization(), OptimizeModule(), rtol=1e-3, atol=1e-3)
    assert ("quant_dot" in names(after)) == (limit == 127)


def residual_network(rank: int = 4, projected: bool = True) -> Program:
    """``conv(relu(x + conv(x)))``, or the sum itself, of a computed ``x``; products of vectors in place of images."""
    g = Graph()
    x = g.op("tanh", g.param("x", [2, 4, 5, 6][: 2 if rank == 2 else 4]))

    def product(value: Instruction) -> Instruction:
        if rank == 2:
            return g.op("dot", value, g.random(4, 4))
        return g.op("convolution", value, g.random(4, 4, 1, 1))

    total = g.op("relu", g.op("add", product(x), x))
    return g.ret(product(total) if projected else total)


@pytest.mark.parametrize(
    "rank, projected, scales, clipped, type, shared",
    [
        (4, True, (0.008, 0.02), 0.0, Type.uint8_type, True),
        (4, True, (0.008, 0.003), 0.0, Type.uint8_type, False),
        (4, True, (0.008, 0.02), 1e-5, Type.uint8_type, False),
        (4, True, (0.008, 0.02), 0.0, Type.fp8e4m3fn_type, False),
        (4, False, (0.008,), 0.0, Type.uint8_type, False),
        (2, True, (0.008, 0.02), 0.0, Type.uint8_type, False),
    ],
)
def test_residual_sums_read_in_8_bits_what_a_convolution_reads_so(
    rank: int, projected: bool, scales: tuple[float, ...], clipped: float, type: Type, shared: bool
) -> None:
    """Allowed if the sum's steps are at least half of the addend's steps and no addend was clipped."""
    program = residual_network(rank, projected)
    values = calibrated_values(program, CHOSEN)
    zero = 0 if type.is_floating else 128
    known = [QuantParameters(scale, zero, type, clipped) for scale in scales]
    step = Quantize8Bits({v: ValuePlan(p) for v, p in zip(values, known, strict=True)}, CHOSEN)
    run_passes(program, [step], Options(), validate=True)
    addends = {i.name for i in find(program, "add").inputs}
    assert ("dequantizelinear" in addends) == shared and ("tanh" in addends) != shared


def test_layers_that_cannot_be_quantised_say_why() -> None:
    g = Graph()
    x = g.param("x", [3, 4])
    bad = g.lit(np.full((4, 4), np.inf))
    y = g.op("dot", g.op("dot", g.op("dot", x, bad), x_t := g.op("transpose", x, permutation=(1, 0))), x)
    assert x_t.shape.lens == (4, 3)
    program = g.ret(y)
    step = Quantize8Bits({x: ValuePlan(QuantParameters(0.1, 0))}, CHOSEN)
    run_passes(program, [step], Options(), validate=True)
    assert [c.choice.split(":")[0] for c in step.choices] == ["as it is"] * 3
    assert "not finite" in str(step.choices[0]) and "computed" in str(step.choices[1])


@pytest.mark.parametrize("lens", [(96, 10), (70, 8), (1, 300), (2, 64, 6)])
def test_product_weights_in_four_bits(lens: tuple[int, ...]) -> None:
    g = Graph()
    w = g.random(*lens[-2:])
    spread = g.spread(w, *lens) if len(lens) == 3 else w
    program = g.ret(g.op("dot", g.param("x", [*lens[:-2], 4, lens[-2]]), spread))
    before = program.clone()
    run_passes(program, [QuantizeInt4()], Options(), validate=True)
    assert {i.shape.elements for i in program.main if i.literal and i.shape.type is Type.uint8_type} >= {
        lens[-2] * lens[-1] // 2
    }
    value = evaluate_input(program, 1)
    original = evaluate_input(before, 1)
    assert np.abs(value - original).max() <= 2.0 / 15 * 0.5 * 1.2
    for first in range(0, lens[-2], BLOCK):
        part = original[..., first : first + BLOCK, :]
        step = (np.maximum(part.max(-2), 0) - np.minimum(part.min(-2), 0)) / 15
        apart = np.abs(value[..., first : first + BLOCK, :] - part).max(-2)
        assert (apart <= step * 1.001 + 1e-6).all()
    check(program, RewriteQuantization(), OptimizeModule())


def evaluate_input(program: Program, index: int) -> np.ndarray:
    """The value of a constant input of the program's last operation."""
    copy = program.clone()
    copy.main.replace_return([copy.main.results()[0].inputs[index]])
    return np.asarray(evaluate(copy, random_inputs(program))[0])


def test_kernels_in_four_bits() -> None:
    g = Graph()
    y = g.op("convolution", g.param("x", [1, 5, 6, 6]), g.random(12, 5, 3, 3))
    program = g.ret(y, g.op("convolution", g.param("z", [1, 5, 6, 6]), g.random(7, 5, 3, 3)))
    run_passes(program, [QuantizeInt4()], Options(), validate=True)
    assert names(program).count("unpack_int4") == 1  # 7 by 5 by 3 by 3 has no even length
    check(program, RewriteQuantization(), OptimizeModule())


def test_float8_inputs_and_results_become_float32() -> None:
    g = Graph()
    x = g.param("x", [3, 4], "fp8e4m3fn_type")
    program = g.ret(g.op("neg", x), x, g.param("y", [2]))
    run_passes(program, [AutocastFp8()], Options(), validate=True)
    assert [s.type for s in program.parameter_shapes().values()] == [Type.float_type] * 2
    values = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    found = evaluate(program, {"x": values, "y": np.zeros(2, np.float32)})
    expected = values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found[0], -expected)
    np.testing.assert_array_equal(found[1], expected)
    check(program, AutocastFp8())


@pytest.mark.parametrize("x_zero, w_zero, w_type", [(0, 0, np.int8), (7, 0, np.int8), (200, 130, np.uint8)])
def test_integers_less_their_zero_point(x_zero: int, w_zero: int, w_type: Any) -> None:
    rng = np.random.default_rng(x_zero)
    low, high = (-100, 100) if w_type == np.int8 else (30, 240)
    g = Graph()
    x, z = g.param("x", [1, 8, 5, 6], "uint8"), g.param("z", [3, 40], "uint8")
    points = g.lit(x_zero, np.uint8), g.lit(w_zero, w_type)
    w, v = g.lit(rng.integers(low, high, (6, 8, 3, 3)), w_type), g.lit(rng.integers(low, high, (40, 9)), w_type)
    y = g.op("integer_convolution", x, w, *points, padding=(1, 1))
    after = check(g.ret(y, g.op("integer_dot", z, v, *points)), SimplifyQdq(), RewriteQuantization())
    assert {"quant_convolution", "quant_dot"} <= set(names(after))
    assert not {"integer_convolution", "integer_dot", "reduce_sum"} & set(names(after))
    inputs = random_inputs(after)
    inputs = {name: rng.integers(0, 256, a.shape).astype(np.uint8) for name, a in inputs.items()}
    for found, expected in zip(evaluate(after, inputs), evaluate(g.program, inputs)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("type", ["uint8", "int8"])
@pytest.mark.parametrize("w_zero", [0, 3])
def test_integer_products_with_a_computed_zero_point(type: str, w_zero: int) -> None:
    rng = np.random.default_rng(1)
    g = Graph()
    x, zero = g.param("x", [2, 3, 70], type), g.param("zero", [1], type)
    w = g.spread(g.lit(rng.integers(-120, 120, (70, 9)), np.int8), 2, 70, 9)
    program = g.ret(g.op("integer_dot", x, w, zero, g.lit(w_zero, np.int8)))
    values = random_inputs(program)
    check(program, SimplifyQdq(), inputs=values)
    after = check(g.program, SimplifyQdq(), inputs={k: v * 7 for k, v in values.items()})
    assert ("quant_dot" in names(after)) and "integer_dot" not in names(after)


@pytest.mark.parametrize("constant", [True, False])
def test_products_by_unsigned_integers_are_by_signed_ones(constant: bool) -> None:
    rng = np.random.default_rng(2)
    g = Graph()
    x, given = g.param("x", [4, 30], "int8"), rng.integers(0, 256, (30, 9))
    w = g.lit(given, np.uint8) if constant else g.param("w", [30, 9], "uint8")
    values = {"x": rng.integers(-128, 128, (4, 30)).astype(np.int8)}
    if not constant:
        values["w"] = given.astype(np.uint8)
    after = check(g.ret(g.op("quant_dot", x, w)), SimplifyQdq(), inputs=values)
    (product,) = (i for i in after.main if i.name == "quant_dot")
    assert product.inputs[1].shape.type is Type.int8_type


def pairs(program: Program) -> int:
    return sum(names(program).count(f"{kind}quantizelinear") for kind in ("", "de"))


PARAMETERS = [(0.02, 0, "uint8"), (0.013, 77, "uint8"), (0.02, -5, "int8"), (0.02, None, "int8")]
MOVES: dict[str, Any] = {
    "transpose": lambda g, x: g.op("transpose", x, permutation=(0, 3, 1, 2)),
    "reshape": lambda g, x: g.op("reshape", x, dims=(5, 42, 1, 1)),
    "slice": lambda g, x: g.op("slice", x, axes=(1,), starts=(1,), ends=(3,)),
    "pooling": lambda g, x: g.op(
        "pooling", x, mode="max", lengths=(3, 2), padding=(1, 0), stride=(2, 1), dilations=(1, 1)
    ),
    "pad": lambda g, x: g.op("pad", x, pads=(0, 0, 1, 2, 0, 1, 0, 0)),
    "edges": lambda g, x: g.op("pad", x, pads=(0, 0, 1, 2, 0, 1, 0, 0), mode=1),
    "resize": lambda g, x: g.op("resize", x, scales=(1.0, 1.0, 2.0, 3.0)),
    "gather": lambda g, x: g.op("gather", x, g.lit([2, -1, 0], np.int64), axis=1),
    "relu": lambda g, x: g.op("relu", x),
    "concat": lambda g, x: g.op("concat", x, x, axis=1),
}


@pytest.mark.parametrize("scale, zero, type", PARAMETERS)
@pytest.mark.parametrize("move", MOVES)
def test_what_chooses_elements_does_so_in_8_bits(move: str, scale: float, zero: int | None, type: str) -> None:
    for lens in ((2, 5, 7, 3), (2, 5, 1, 21)):
        if lens[2] == 1 and move in ("pooling", "reshape"):
            continue
        g = Graph()
        y = MOVES[move](g, quantized(g, g.param("x", lens), scale, zero, type))
        g.ret(quantized(g, y, scale, zero, type))
        after = check(g.program, SimplifyQdq(), rtol=0, atol=0)
        assert pairs(after) == 2  # one before and one after
        assert [u.name for u in find(after, "dequantizelinear").users] == ["@return"]


def test_a_pooling_that_is_no_maximum_is_of_dequantised_values() -> None:
    g = Graph()
    x = quantized(g, g.param("x", [1, 2, 6, 6]), 0.02, 3)
    y = g.op("pooling", x, mode="average", lengths=(2, 2), padding=(0, 0), stride=(2, 2), dilations=(1, 1))
    after = check(g.ret(quantized(g, y, 0.02, 3)), SimplifyQdq(), rtol=0, atol=0)
    assert pairs(after) == 4


def test_a_value_is_quantised_before_it_is_moved() -> None:
    g = Graph()
    x, y = (g.op("tanh", g.param(name, [3, 4, 5])) for name in "xy")
    joined = g.op("transpose", g.op("concat", x, y, axis=2), permutation=(2, 0, 1))
    after = check(g.ret(quantized(g, joined, 0.01, 7)), SimplifyQdq(), rtol=0, atol=0)
    assert [i.inputs[0].name for i in after.main if i.name == "quantizelinear"] == ["tanh", "tanh"]
    assert find(after, "concat").shape.type is Type.uint8_type


def test_pairs_of_different_parameters_stay() -> None:
    for other in ((0.02, 9, "uint8"), (0.021, 3, "uint8")):
        g = Graph()
        x = quantized(g, g.param("x", [3, 4]), 0.02, 3)
        assert pairs(check(g.ret(quantized(g, x, *other)), SimplifyQdq(), rtol=0, atol=0)) == 4
    g = Graph()
    x = quantized(g, g.param("x", [3, 4]), 1e38, 3)  # differences are infinite
    assert pairs(check(g.ret(quantized(g, x, 1e38, 3)), SimplifyQdq(), rtol=0, atol=0)) == 4


@pytest.mark.parametrize("kind", [Type.fp8e4m3fn_type, Type.fp8e5m2_type])
def test_infinities_in_8_bits_saturate_when_they_are_quantised_again(kind: Type) -> None:
    g = Graph()
    x, scale = g.param("x", [256], kind.dtype_name), g.spread(g.lit(0.013, np.float32), 256)
    again = g.op("quantizelinear", g.op("dequantizelinear", x, scale), scale, out_type=kind)
    program = g.ret(again)
    every = np.arange(256, dtype=np.uint8).view(kind.numpy)
    expected = evaluate(program, {"x": every})[0].astype(np.float32)
    run_passes(program, [SimplifyQdq()], STRICT)
    np.testing.assert_array_equal(evaluate(program, {"x": every})[0].astype(np.float32), expected)
    assert ("quantizelinear" in names(program)) == (kind is Type.fp8e5m2_type)
    g = Graph()
    x = g.param("x", [3])
    scale = g.spread(g.lit(0.013, np.float32), 3)
    once = g.op("dequantizelinear", g.op("quantizelinear", x, scale, out_type=kind), scale)
    again = g.op("quantizelinear", once, scale, out_type=kind)
    program = g.ret(g.op("convert", again, target_type=Type.float_type))
    inputs = {"x": np.array([np.inf, -np.inf, 0.5], np.float32)}
    (expected,) = evaluate(program, inputs)
    run_passes(program, [SimplifyQdq()], STRICT)
    np.testing.assert_array_equal(evaluate(program, inputs)[0], expected)
    assert names(program).count("quantizelinear") == 1


def residual(zero: int) -> Program:
    """A convolution and what came into it, added, twice: each in 8 bits."""
    g = Graph()
    x = quantized(g, g.param("x", [2, 8, 5, 6]), 0.01631, zero)
    for seed in range(2):
        w = weights(g, (8, 8, 3, 3 - 2 * seed), 0)
        y = quantized(g, g.op("convolution", x, w, padding=(1, 1 - seed)), 0.05173, 120)
        x = quantized(g, g.op("relu", g.op("add", y, x)), 0.04091, 0)
    return g.ret(x)


@pytest.mark.parametrize("zero", [0, 91])
@pytest.mark.parametrize("options", [FAST, STRICT])
def test_a_contraction_reads_residuals_in_8_bits(zero: int, options: Options) -> None:
    program = residual(zero)
    inputs = random_inputs(program)
    before = evaluate(program, inputs)[0]
    passes = [SimplifyQdq(), RewriteQuantization(), OptimizeModule(), "fuse_contraction", "dead_code_elimination"]
    run_passes(program, passes, options, validate=True)
    fused = [i for i in program.main if i.name == "fused_contraction"]
    assert len(fused) == 2
    wide = [i for f in fused for i in f.inputs if i.shape.type is Type.float_type and not is_constant(i)]
    assert wide == []
    apart = np.abs(evaluate(program, inputs)[0] - before) / 0.04091
    # each of three roundings on the way may differ by a step where a value lies in the middle of two
    assert apart.max() <= (3.01 if options.fast_math else 1.01) and (apart > 0.5).mean() < 0.02


@pytest.mark.parametrize("zero", [None, 0, 7, 255])
def test_what_is_dequantised_at_once_needs_no_integers(zero: int | None) -> None:
    g = Graph()
    x = g.param("x", [4, 64])
    program = g.ret(quantized(g, x, 0.01, zero), quantized(g, x, 1e-30, zero), quantized(g, x, 1e30, zero))
    passes = (RewriteQuantization(), make_pass("fuse_pointwise"), RewriteRequantization())
    joined = (passes[0], OptimizeModule(), make_pass("eliminate_convert"), *passes[1:])

    def conversions(program: Program, options: Options, passes: Any = passes) -> int:
        after = check(program, *passes, options=options, special=True, rtol=0, atol=0, idempotent=False)
        return sum(ins.name == "convert" for module in after.modules for ins in module)

    assert conversions(program, FAST) == conversions(program, FAST, joined) == 0
    assert conversions(program, STRICT) >= 3
    for point, read_again in ((100, False), (zero or 0, True)):  # other zero points; the integers are a result, too
        g = Graph()
        x = g.param("x", [4, 64])
        integers = g.op("quantizelinear", x, g.scalar(0.01, x), g.spread(g.lit(zero or 0, np.uint8), 4, 64))
        back = g.op("dequantizelinear", integers, g.scalar(0.01, x), g.spread(g.lit(point, np.uint8), 4, 64))
        assert conversions(g.ret(back, *([integers] if read_again else [])), FAST) > 0


@pytest.mark.parametrize("sums_first", [False, True])
def test_sums_are_requantised_alike_on_either_side_of_what_is_added(sums_first: bool) -> None:
    g = Graph()
    x = quantized(g, g.param("x", [2, 8, 5, 6]), 0.01631, 91)
    added = quantized(g, g.param("added", [2, 8, 3, 4]), 0.0217, 100)
    sums = g.op("convolution", x, weights(g, (8, 8, 3, 3), 0))
    program = g.ret(quantized(g, g.op("add", *((sums, added) if sums_first else (added, sums))), 0.0413, 7))
    passes = (SimplifyQdq(), RewriteQuantization())
    after = check(program, *passes, options=FAST, rtol=0, atol=0.0414, idempotent=False)
    assert names(after).count("div") == 2  # of the parameters alone


def test_products_of_8_bits_are_multiplied_by_the_inverse_of_a_scale() -> None:
    """SiLU as ONNX Runtime's quantiser writes it, of a product that a residual block has made, and a gate."""
    g = Graph()
    x = quantized(g, g.param("x", [2, 8, 5, 6]), 0.01631, 91)
    y = quantized(g, g.op("convolution", x, weights(g, (8, 8, 3, 3), 0)), 0.05173, 120)
    gate = g.op("convolution", quantized(g, g.param("gate", [2, 4, 1, 1]), 0.0163, 120), weights(g, (8, 4, 1, 1), 0))
    gate = g.spread(quantized(g, g.op("sigmoid", gate), 0.0039, 0), 2, 8, 3, 4)
    y = quantized(g, g.op("mul", y, quantized(g, g.op("sigmoid", y), 0.0039, 0)), 0.0413, 7)
    program = g.ret(quantized(g, g.op("mul", y, gate), 0.0301, 11))
    for options, divided in ((STRICT, 7), (FAST, 2)):  # of the parameters alone
        passes = (SimplifyQdq(), RewriteQuantization())
        after = check(program, *passes, options=options, rtol=0, atol=0.0302, idempotent=False)
        assert names(after).count("div") == divided


def test_only_what_becomes_of_sums_is_multiplied_by_the_inverse_of_a_scale() -> None:
    for options, divided in ((STRICT, 5), (FAST, 1)):
        program = residual(91)
        run_passes(program, [SimplifyQdq(), RewriteQuantization()], options)
        assert names(program).count("div") == divided


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_minus_zero_points_are_exact_at_the_ends_of_types(dtype: str, wide: bool) -> None:
    """A scalar zero point is subtracted modulo 256; different zero points are subtracted in 16 bits."""
    ends = np.iinfo(dtype)
    for low, high in ((ends.min, ends.max), (0, 127), (100, 120), (3, 3)):
        values = np.linspace(low, high, 12).astype(dtype).reshape(3, 4)[:, ::2]
        for point in {ends.min, low, 0, 1, high, ends.max}:
            for points in (np.array(point, dtype), np.full((3, 1), point, dtype)):
                expected = values.astype(np.int64) - points
                fits = expected.min() >= -128 and expected.max() <= 127
                found = integer_products._exact(values, points, wide)
                if found is None:
                    assert not (fits or wide)
                else:
                    assert found.dtype == ("int8" if fits else "int16")
                    np.testing.assert_array_equal(found, expected)
    assert integer_products._exact(np.zeros((0, 2), dtype), np.array(5, dtype), wide) is not None
