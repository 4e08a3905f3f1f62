"""Quantised values are stored only in few bits where the target's kernels read and write them so."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.passes.base import run_passes
from mgx_numba.graph.passes.rewrite_quantization import RewriteQuantization
from mgx_numba.graph.passes.simplify_qdq import SimplifyQdq
from mgx_numba.graph.passes.truncate_float import TruncateFloat
from mgx_numba.targets.gpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate

from .support import STRICT, Graph, check, find, names, random_inputs
from .test_quantize import quantized, weights

GPU = pass_options(TargetOptions(fast_math=True))
"""Options that the ``gpu`` target gives to its passes."""
FLOAT, HALF, U8, I8 = Type.float_type, Type.half_type, Type.uint8_type, Type.int8_type


@pytest.mark.parametrize(("zero", "type", "wanted"), [(128, "uint8", I8), (0, "int8", I8), (127, "uint8", U8)])
def test_left_operands_around_zero_are_signed_where_kernels_multiply_them(zero: int, type: str, wanted: Type) -> None:
    """So that images are padded by nothing."""
    g = Graph()
    x = quantized(g, g.op("tanh", g.param("x", [1, 4, 5, 6])), 0.01, zero, type)
    y = g.op("convolution", x, weights(g, (3, 4, 3, 3), 0), padding=(1, 1))
    after = check(g.ret(y), SimplifyQdq(), options=GPU, rtol=1e-5, atol=1e-5)
    assert find(after, "quant_convolution").inputs[0].shape.type is wanted
    assert ("pad" in names(after)) == (wanted is U8)


@pytest.mark.parametrize(("zero", "left"), [(0, 0), (3, 1)])
def test_what_saturates_at_zero_needs_no_relu(zero: int, left: int) -> None:
    g = Graph()
    x = g.op("relu", g.op("tanh", g.param("x", [3, 5])))
    program = g.ret(quantized(g, x, 0.01, zero))
    after = check(program, SimplifyQdq(), rtol=0, atol=0)
    assert names(after).count("relu") == left
    inputs = {"x": np.full((3, 5), np.nan, np.float32)}
    np.testing.assert_array_equal(evaluate(after, inputs)[0], evaluate(program, inputs)[0])


def test_a_maximum_of_16_bits_is_one_of_8() -> None:
    g = Graph()
    x = g.op("convert", g.op("tanh", g.param("x", [1, 2, 6, 6])), target_type=HALF)
    y = g.op("pooling", x, mode="max", lengths=(2, 2), padding=(0, 0), stride=(2, 2), dilations=(1, 1))
    after = check(g.ret(quantized(g, g.op("convert", y, target_type=FLOAT), 0.01, 7)), SimplifyQdq(), rtol=0, atol=0)
    assert find(after, "pooling").shape.type is U8


def test_float8_is_multiplied_as_it_is() -> None:
    g = Graph()
    kind = Type.fp8e4m3fn_type
    pairs = []
    for value in (g.param("x", [3, 32]), g.random(32, 5)):
        step = g.scalar(0.01, value)
        pairs.append(g.op("dequantizelinear", g.op("quantizelinear", value, step, out_type=kind), step))
    left, right = pairs
    codes = g.lit(evaluate_literal(right), kind.numpy)
    right = g.op("dequantizelinear", codes, g.scalar(0.01, right))
    after = check(g.ret(g.op("dot", left, right)), SimplifyQdq(), options=GPU, rtol=1e-4, atol=1e-4)
    assert {i.shape.type for i in find(after, "quant_dot").inputs} == {kind}
    assert "quant_dot" not in names(check(g.program, SimplifyQdq(), options=STRICT))


def evaluate_literal(dequantized: Instruction) -> np.ndarray:
    """The codes of a dequantised literal."""
    value, step = dequantized.inputs[0].inputs
    scale = step.inputs[0].literal.numpy()  # type: ignore[union-attr]
    codes: np.ndarray = value.literal.numpy() / scale  # type: ignore[union-attr]
    return codes


def test_what_is_in_8_bits_stays_so_beside_float16() -> None:
    g = Graph()
    x = quantized(g, g.op("tanh", g.param("x", [3, 8])), 0.01, 100)
    y = g.op("tanh", g.op("dot", x, weights(g, (8, 5), 1)))
    program = g.ret(g.op("dot", y, g.random(5, 4)))
    inputs = random_inputs(program)
    before = evaluate(program, inputs)[0]
    run_passes(program, [TruncateFloat(), SimplifyQdq()], validate=True)
    assert find(program, "quant_dot").shape.type is Type.int32_type and find(program, "dot").shape.type is HALF
    np.testing.assert_allclose(evaluate(program, inputs)[0], before, atol=5e-3)


@pytest.mark.parametrize("half", [False, True])
def test_a_bias_takes_the_zero_point_of_sums(half: bool) -> None:
    g = Graph()
    x = quantized(g, g.op("tanh", g.param("x", [3, 8])), 0.01, 100)
    y = g.op("dot", x, weights(g, (8, 5), 1))
    if half:
        y = g.op("convert", y, target_type=HALF)
    bias = g.lit(np.linspace(-1, 1, 5), y.shape.type.numpy)
    program = g.ret(g.op("add", g.spread(bias, 3, 5), y))
    passes = (SimplifyQdq(), RewriteQuantization())
    after = check(program, *passes, options=GPU, atol=2e-3 if half else 1e-5)
    sums = find(after, "quant_dot")
    chain = []
    while sums.name != "@return":
        (sums,) = sums.users
        chain.append(sums.name)
    assert chain == ["convert", "mul", "add", *["convert"] * half, "@return"]
    assert "sub" in names(check(program, *passes, options=STRICT, atol=2e-3))


def test_a_norm_stores_what_is_rounded_of_it() -> None:
    g = Graph()
    x = g.param("x", [4, 16])
    y = g.op("sub", x, g.spread(g.op("reduce_mean", x, axes=(1,)), 4, 16))
    codes = g.op("quantizelinear", y, g.scalar(0.05, y), out_type=U8)
    half = g.op("convert", y, target_type=HALF)
    passes = ["rewrite_quantization", "fuse_reduce", "dead_code_elimination"]
    program = g.ret(g.op("convert", codes, target_type=FLOAT), g.op("convert", half, target_type=FLOAT))
    inputs = random_inputs(program)
    before = evaluate(program, inputs)
    run_passes(program, passes, GPU, validate=True)
    fused = find(program, "fused_reduce")
    assert {s.type for s in fused.shape.sub_shapes} == {U8, HALF}
    for got, wanted in zip(evaluate(program, inputs), before, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_a_norm_whose_result_is_read_before_it_is_rounded_stores_that_alone() -> None:
    g = Graph()
    x = g.param("x", [4, 16])
    y = g.op("sub", x, g.spread(g.op("reduce_mean", x, axes=(1,)), 4, 16))
    product = g.op("dot", y, g.random(16, 16))
    half = g.op("convert", y, target_type=HALF)
    program = g.ret(product, g.op("convert", half, target_type=FLOAT))
    run_passes(program, ["fuse_reduce"], GPU, validate=True)
    assert find(program, "fused_reduce").shape.type is FLOAT
