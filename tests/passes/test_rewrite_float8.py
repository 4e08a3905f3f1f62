"""Float8 as storage: quantisation by powers of two and back in one operation, and the choice of layers."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.api.quantizing import quantize_8bits
from mgx_numba.core.types import Type, parse_type
from mgx_numba.errors import ShapeError
from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.observers import make_observer
from mgx_numba.graph.passes.optimize_module import OptimizeModule
from mgx_numba.graph.passes.rewrite_float8 import RewriteFloat8
from mgx_numba.graph.passes.simplify_algebra import SimplifyAlgebra
from mgx_numba.ops.quantize import NearestFloat8
from mgx_numba.targets.cpu.capabilities import pass_options
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.ref.interpreter import evaluate
from mgx_numba.targets.registry import compile_for

from ..ops.running import call, shape
from .support import Graph, check, find, names, random_inputs

OPTIONS = pass_options(TargetOptions(fast_math=False))
KINDS = ["fp8e4m3fn_type", "fp8e5m2_type"]


def pair(g: Graph, x: Instruction, step: float, kind: str = KINDS[0], moved: bool = False) -> Instruction:
    """``x`` quantised and dequantised, with a maximum, a view and a concatenation between if it is ``moved``."""
    q = g.op("quantizelinear", x, _spread(g, step, x), out_type=kind)
    if moved:
        pooled = g.op("pooling", q, mode="max", lengths=(2, 2), stride=(2, 2), padding=(1, 1))
        q = g.op("concat", g.op("transpose", pooled, permutation=(0, 1, 3, 2)), pooled, axis=1)
    return g.op("dequantizelinear", q, _spread(g, step, q))


def _spread(g: Graph, step: float, like: Instruction) -> Instruction:
    return g.spread(g.lit(np.full((1,) * len(like.shape.lens), step, np.float32)), *like.shape.lens)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1.0, 2.0**-9, 8.0])
def test_a_pair_with_a_power_of_two_is_one_operation(step: float, kind: str, moved: bool) -> None:
    g = Graph()
    program = g.ret(pair(g, g.param("x", [2, 3, 6, 6]), step, kind, moved))
    after = check(program, RewriteFloat8(), options=OPTIONS, atol=0, rtol=0, special=True)
    assert names(after).count("nearest_float8") == 1
    assert not {"quantizelinear", "dequantizelinear"} & set(names(after))


@pytest.mark.parametrize("kind", KINDS)
def test_scales_at_the_ends_of_float32(kind: str) -> None:
    """With one of 2**100 all values became infinities."""
    dtype = parse_type(kind)
    able = NearestFloat8.exponents(dtype)
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    for exponent in (able[0] - 1, able[0], able[-1], able[-1] + 1, 108):
        g = Graph()
        program = g.ret(pair(g, g.param("x", [2, 256]), 2.0**exponent, kind))
        with np.errstate(all="ignore"):
            inputs = {"x": np.float32([codes, 1.03 * codes]) * np.float32(2.0**exponent)}
            expected = evaluate(program, inputs)[0]
        rewritten = check(program, RewriteFloat8(), options=OPTIONS, atol=0, rtol=0)
        assert ("nearest_float8" in names(rewritten)) == (exponent in able)
        for fast_math in (False, True):
            compiled = compile_for("cpu", program, TargetOptions(fast_math=fast_math))
            if exponent >= able[0]:
                np.testing.assert_array_equal(compiled.run(inputs)[0], expected)
    with pytest.raises(ShapeError, match=rf"the exponent must be from {able[0]} to {able[-1]}, got 108"):
        shape("nearest_float8", codes, target_type=int(dtype), exponent=108)


def test_other_pairs_stay() -> None:
    g = Graph()
    program = g.ret(pair(g, g.param("x", [2, 3]), 0.3))
    assert "nearest_float8" not in names(check(program, RewriteFloat8(), options=OPTIONS))
    g = Graph()
    program = g.ret(pair(g, g.param("x", [2, 3]), 0.5))
    assert OPTIONS.capabilities is not None
    multiplies = replace(OPTIONS, capabilities=replace(OPTIONS.capabilities, float8_products=True))
    assert "nearest_float8" not in names(check(program, RewriteFloat8(), options=multiplies))
    g = Graph()
    given = g.param("x", [2, 3], "fp8e4m3fn_type")
    program = g.ret(g.op("dequantizelinear", given, _spread(g, 0.5, given)))
    assert names(check(program, RewriteFloat8(), options=OPTIONS)).count("dequantizelinear") == 1


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "clip", ""])
@pytest.mark.parametrize("read_twice", [False, True])
def test_weights_take_the_scale_where_they_alone_make_and_read_the_value(kind: str, read_twice: bool) -> None:
    """Bit by bit the same."""
    g = Graph()
    x = g.param("x", [1, 4, 5, 5])
    made = g.op("convolution", x, g.random(6, 4, 3, 3))
    made = g.op("add", made, g.spread(g.random(1, 6, 1, 1), 1, 6, 3, 3))
    if kind:
        limits = (g.scalar(-1, made), g.scalar(2, made)) if kind == "clip" else ()
        made = g.op(kind, made, *limits)
    near = g.op("nearest_float8", made, target_type=int(Type.fp8e4m3fn_type), exponent=-3)
    flat = g.op("reshape", near, dims=(1, 54))
    results = [g.op("dot", flat, g.random(54, 3))] + [near] * read_twice
    fast = replace(OPTIONS, fast_math=True)
    after = check(g.ret(*results), SimplifyAlgebra(), OptimizeModule(), options=fast, atol=0, rtol=0)
    left = find(after, "nearest_float8")
    assert left.op.attributes()["exponent"] == (-3 if read_twice else 0)
    assert "mul" not in names(after)


def test_the_operator_is_a_pair_of_conversions() -> None:
    x = np.float32([0.0, -0.0, 1e-9, 0.3, -0.3, 17.0, 1e4, -1e4, np.inf, -np.inf, np.nan])
    for exponent in (0, -4, 3):
        with np.errstate(all="ignore"):
            limited = np.clip(x / np.float32(2.0**exponent), -448, 448)
        expected = limited.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(2.0**exponent)
        np.testing.assert_array_equal(call("nearest_float8", x, exponent=exponent), expected)
    with pytest.raises(ShapeError, match="float32 and a float8"):
        shape("nearest_float8", x.astype(np.float64))


@pytest.mark.parametrize("exponent", [-110, 0, 94, 96, 110])
@pytest.mark.parametrize("kind, code", list(zip(KINDS, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))))
def test_kernels_round_at_scales_of_any_size(kind: str, code: type, exponent: int) -> None:
    """Numbers near the largest float32 became infinite."""
    codes = np.arange(256, dtype=np.uint8).view(code).astype(np.float32)
    x = np.linspace(0.9, 1.1, 7, dtype=np.float32)[:, None] * codes * np.float32(2.0**exponent)
    g = Graph()
    program = g.ret(pair(g, g.param("x", list(x.shape)), 2.0**exponent, kind))
    expected = evaluate(program, {"x": x})[0]
    for fast_math in (False, True):
        compiled = compile_for("cpu", program.clone(), TargetOptions(fast_math=fast_math))
        np.testing.assert_array_equal(np.asarray(compiled.run({"x": x})[0]), expected)


def test_scales_of_float8_are_powers_of_two_and_cover_the_range() -> None:
    for largest in (448.0, 449.0, 1e-3, 7.0):
        observer = make_observer("minmax")
        observer.observe(np.float32([-largest, 0.25 * largest]))
        step = observer.parameters(Type.fp8e4m3fn_type).scale
        assert np.frexp(step)[0] == 0.5 and 448 * step >= np.float32(largest) > 224 * step


def test_layers_of_few_inputs_stay_as_they_are() -> None:
    """An image, and channels by themselves; what is quantised is as the reference has it."""
    g = Graph()
    x = g.op("relu", g.op("convolution", g.param("x", [1, 3, 8, 8]), g.random(16, 3, 3, 3)))
    alone = g.op("silu", g.op("convolution", x, g.random(16, 1, 3, 3), group=16))
    program = g.ret(g.op("convolution", alone, g.random(5, 16, 1, 1)))
    inputs = random_inputs(program)
    choices, _ = quantize_8bits(program, "ref", [inputs], type=Type.fp8e4m3fn_type)
    assert [c.choice.split(":")[0] for c in choices] == ["as it is", "as it is", "e4m3fn"]
    assert "fewer than 16 inputs" in choices[0].choice
    expected = evaluate(program, inputs)[0]
    for fast_math in (False, True):
        compiled = compile_for("cpu", program, TargetOptions(fast_math=fast_math))
        found = np.asarray(compiled.run(inputs)[0])
        assert np.abs(found - expected).max() <= (0.02 if fast_math else 1e-3) * np.abs(expected).max()
