"""Rounding of float32 to 8 bits for quantisation: values of ref, saturated, ties to even, NaN as 0."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import NAME
from mgx_numba.codegen.gpu.lang import rounding
from mgx_numba.codegen.gpu.lang.bytes import max_bytes
from mgx_numba.codegen.gpu.toolchain.compiler import assembly, compile_object
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.lang.arith import eq, where
from mgx_numba.codegen.lang.target import with_features
from mgx_numba.codegen.lang.values import extract, iota_int8, splat
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .programs import compiled


def numbers() -> np.ndarray:
    """Return ties, neighbours of ties, saturating values, infinities and NaN."""
    ties = np.arange(-300, 300, dtype=np.float32) / 2
    beside = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    special = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e38, -0.0, 1e-40], np.float32)
    return np.concatenate([ties, *beside, special])


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize(
    ("type", "zero"), [(np.uint8, 0), (np.uint8, 255), (np.uint8, 77), (np.int8, -128), (np.int8, 0), (np.int8, 5)]
)
def test_quantised_values(type: Any, zero: int, more: int, on: Engine) -> None:
    """The lengths include ``more`` elements after the last whole vector."""
    x, program = np.concatenate([numbers(), np.array([2.5, 77, -3.5], np.float32)[:more]]), Program()
    m = program.main
    p = m.add_parameter("x", Shape(Type.float_type, x.shape))
    value = m.add_instruction("tanh", [p]) if zero == 5 else p
    step = m.add_instruction("multibroadcast", [m.add_literal(np.array([1], np.float32))], out_lens=x.shape)
    point = m.add_instruction("multibroadcast", [m.add_literal(np.array([zero], type))], out_lens=x.shape)
    m.add_return([m.add_instruction("quantizelinear", [value, step, point], out_type=from_numpy(np.dtype(type)))])
    made = compiled(program, on)
    assert any("rounded_" in kernel.text for kernel in made.kernels())
    np.testing.assert_array_equal(made.run({"x": x})[0], reference(program, {"x": x}).results[0])


def test_what_the_language_makes_of_them_is_exact() -> None:
    """The LLVM IR, which is the same on every device, run by this machine's CPU."""
    signed, unsigned = rounding.rounded_int8, rounding.rounded_uint8

    @njit
    def every(x: Any, a: Any, b: Any) -> None:
        for k in range(x.size):
            a[k] = extract(signed(splat(x[k], 4), splat(np.float32(7), 4)), 3)
            b[k] = extract(unsigned(splat(x[k], 4), splat(np.float32(130), 4)), 1)

    @njit
    def each(x: Any, a: Any, b: Any) -> None:
        for k in range(x.size):
            a[k] = extract(signed(splat(x[k], 1), splat(np.float32(7), 1)), 0)
            b[k] = extract(unsigned(splat(x[k], 1), splat(np.float32(130), 1)), 0)

    x = numbers()
    found = [np.empty(x.shape, dtype) for dtype in (np.int8, np.uint8) * 2]
    with with_features(frozenset(("fma", "f16c"))):
        every(x, *found[:2])
        each(x, *found[2:])
    for got, zero in zip(found, (7, 130) * 2):
        ends = np.iinfo(got.dtype)
        wanted = np.clip(np.nan_to_num(np.rint(x).astype(np.float64) + zero), ends.min, ends.max)
        np.testing.assert_array_equal(got, np.where(np.isnan(x), 0, wanted).astype(got.dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_the_larger_bytes_of_words_are_exact(dtype: Any) -> None:
    @njit
    def each(x: Any, y: Any, out: Any) -> None:
        for k in range(x.size):
            for j in range(4):  # beside others, that decide nothing
                found = max_bytes(
                    splat(x[k], 4), where(eq(iota_int8(4), splat(np.int8(j), 4)), splat(y[k], 4), splat(y[-k], 4))
                )
                out[j, k] = extract(found, j)

    every = np.arange(256, dtype=np.uint8).view(dtype)
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in np.broadcast_arrays(every[:, None], every))
    out = np.empty((4, x.size), dtype)
    with with_features(frozenset()):
        each(x, y, out)
    np.testing.assert_array_equal(out, np.broadcast_to(np.maximum(x, y), out.shape))


@pytest.mark.parametrize("name", ["rounded_uint8", "rounded_int8"])
def test_single_numbers_are_not_stored_from_the_register_of_a_float(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas converts what PTX stores as a byte from such a register, although it says nothing of a number's kind."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    text = f"""THREADS = 32
SLOTS = 2


def kernel(args):
    x = pointer_float32(args, 0)
    out = pointer_{name.removeprefix("rounded_")}(args, 1)
    store(out, thread_index(0), {name}(load(x, thread_index(0), 1), const_float32(0, 1)))
"""
    made = assembly(KernelSource(NAME, "rounding", text), ARCHITECTURES["sm_90a"])
    (stored,) = re.findall(r"st\.global\.b8\s+\[[^]]*\], (%\w+);", made)
    (source,) = re.findall(rf"(\S+)\s+{stored}, ", made)[-1:]
    assert ".s32." in source or not source.endswith(".f32"), source


@pytest.mark.parametrize("type", [Type.int8_type, Type.uint8_type])
@pytest.mark.parametrize("activation", ["", "gelu_erf"])
def test_products_are_rounded_once(type: Type, activation: str, on: Engine) -> None:
    """With fast math: within what a division by the step and GELU are off by, of a step; NaN and what saturates too."""
    rng = np.random.default_rng(3)
    x = np.concatenate([numbers()[:-3], rng.uniform(-6, 6, 1000).astype(np.float32), numbers()[-3:]])
    program, point = Program(), 31 if type is Type.uint8_type else -5
    m = program.main
    value: Any = m.add_parameter("x", Shape(Type.float_type, x.shape))
    if activation:
        value = m.add_instruction(activation, [value])
    operands = [np.array([0.0371], np.float32), np.array([point], type.numpy)]
    spread = [m.add_instruction("multibroadcast", [m.add_literal(o)], out_lens=x.shape) for o in operands]
    m.add_return([m.add_instruction("quantizelinear", [value, *spread], out_type=type)])
    made = compiled(program, on, fast_math=True)
    assert any(
        "rounded_product_" in k.text and ("gelu_erf_bytes" in k.text) == bool(activation) for k in made.kernels()
    )
    got, wanted = (np.asarray(v[0]).astype(int) for v in (made.run({"x": x}), reference(program, {"x": x}).results))
    exact = np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0)
    if activation:
        exact = exact * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in exact])
    beside = np.abs((exact / np.float64(operands[0][0])) % 1 - 0.5) < 3e-3  # of the middle of two steps
    assert (np.abs(got - wanted) <= beside).all(), np.flatnonzero(np.abs(got - wanted) > beside)


@pytest.mark.parametrize("type", [Type.int8_type, Type.uint8_type, Type.fp8e4m3fn_type, Type.fp8e5m2_type])
def test_gelu_in_float16_is_as_exact_as_that(type: Type, on: Engine) -> None:
    """With fast math the error is within one rounding of the result plus float16's error of GELU's result.

    Steps are small and large relative to it; values include infinities, NaN and values beyond float16.
    """
    rng, floats = np.random.default_rng(3), type.is_floating
    special = np.array([np.inf, -np.inf, 6e4, -6e4, 20, -20, 0, -0.0, 6e-8, -6e-8], np.float16)
    x = np.concatenate([rng.uniform(-6, 6, 2003).astype(np.float16), special, [np.float16(np.nan)]])
    for step in (0.0371, 5e-5, 300.0):
        program = Program()
        m = program.main
        point = {Type.uint8_type: 31, Type.int8_type: -5}.get(type, 0)
        given = m.add_parameter("x", Shape(Type.half_type, x.shape))
        wide = m.add_instruction("add", [given, given])  # in float32 it may be more than float16 holds
        near = m.add_instruction("gelu_erf", [wide])
        value = m.add_instruction("convert", [near], target_type=Type.float_type, elidable=True)
        operands = [np.array([step], np.float32), *([] if floats else [np.array([point], type.numpy)])]
        spread = [m.add_instruction("multibroadcast", [m.add_literal(o)], out_lens=x.shape) for o in operands]
        m.add_return([m.add_instruction("quantizelinear", [value, *spread], out_type=type)])
        made = compiled(program, on, fast_math=True)
        assert any("gelu_erf_product_" in k.text for k in made.kernels())
        got = np.asarray(made.run({"x": x})[0])
        twice = x.astype(np.float64) * 2
        exact = np.array([0 if v == -np.inf else v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in twice])
        ends = ml_dtypes.finfo(type.numpy) if floats else np.iinfo(type.numpy)
        off = np.maximum(1.5e-3, np.abs(np.nan_to_num(exact, posinf=0)) * 2**-10) / step + 1e-3
        bounds = [
            np.clip(v / step + o + point, float(ends.min), float(ends.max)) for v, o in ((exact, -off), (exact, off))
        ]
        lower, upper = (v[:-1].astype(type.numpy) if floats else np.rint(v[:-1]) for v in bounds)
        numbers = got.astype(np.float64)
        inside = (lower.astype(np.float64) <= numbers[:-1]) & (numbers[:-1] <= upper.astype(np.float64))
        assert inside.all(), (step, x[:-1][~inside], got[:-1][~inside])
        assert np.isnan(numbers[-1]) if floats else numbers[-1] in (0, point)


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_89", "sm_90a", "gfx942", "gfx1201"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_gelu_of_pairs_compiles(dtype: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", name)
    zero = "" if dtype.startswith("float") else ", const_float32(3, 4)"
    text = f"""THREADS = 32
SLOTS = 2


def kernel(args):
    x = load(pointer_float32(args, 0), thread_index(0) * 4, 4)
    store(pointer_{dtype}(args, 1), thread_index(0) * 4, gelu_erf_product_{dtype}(x, const_float32(9.5, 4){zero}))
"""
    made = compile_object(KernelSource(NAME, "gelu", text), ARCHITECTURES[name])
    whole = dtype in ("int8", "uint8")
    assert (b"tanh.approx.f16x2" in made) == (name in ("sm_89", "sm_90a") or (name == "sm_80" and whole))


FLOATS8 = (Type.fp8e4m3fn_type, Type.fp8e5m2_type, Type.fp8e4m3fnuz_type)


@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("type", FLOATS8)
def test_floats_of_8_bits(type: Type, count: int, on: Engine) -> None:
    """Every 8-bit float to float32; and float32 to 8 bits: ties, neighbours of ties, overflow, infinities and NaN."""
    every = np.arange(256, dtype=np.uint8).view(type.numpy)
    finite = np.unique(every.astype(np.float32)[np.isfinite(every.astype(np.float32))])
    between = np.concatenate([(finite[1:] + finite[:-1]) / 2, finite[[0, -1]] * 1.03, finite[[0, -1]] * 1.3])
    around = [np.nextafter(between, np.float32(way)) for way in (-np.inf, np.inf)]
    x = np.concatenate([finite, between, *around, [np.nan, np.inf, -np.inf, -0.0, 1e-30, 1e30]]).astype(np.float32)
    for given, to in ((np.resize(x, len(x) + count), type), (np.resize(every, 256 + count), Type.float_type)):
        program = Program()
        m = program.main
        p = m.add_parameter("x", Shape(from_numpy(given.dtype), given.shape))
        m.add_return([m.add_instruction("convert", [p], target_type=to)])
        (got,), (wanted,) = compiled(program, on).run({"x": given}), reference(program, {"x": given}).results
        got, wanted = (np.asarray(v).astype(np.float32) for v in (got, wanted))
        np.testing.assert_array_equal(got, wanted)
        finite_ones = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[finite_ones]), np.signbit(wanted[finite_ones]))


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("type", FLOATS8[:2])
def test_quantised_floats_saturate(type: Type, fast_math: bool, on: Engine) -> None:
    x = np.concatenate([numbers(), np.linspace(-600, 600, 997, dtype=np.float32), [7e4, -7e4]]).astype(np.float32)
    program = Program()
    m = program.main
    p = m.add_parameter("x", Shape(Type.float_type, x.shape))
    step = m.add_instruction("multibroadcast", [m.add_literal(np.array([1], np.float32))], out_lens=x.shape)
    m.add_return([m.add_instruction("quantizelinear", [p, step], out_type=type)])
    made = compiled(program, on, fast_math=fast_math)
    assert any("saturated_" in kernel.text for kernel in made.kernels())
    (got,), (wanted,) = made.run({"x": x}), reference(program, {"x": x}).results
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), np.asarray(wanted).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_conversions_of_pairs(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of 8-bit floats are converted by instructions where they exist, else by integer arithmetic."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    text = f"""THREADS = 32
SLOTS = 3


def kernel(args):
    x = pointer_{dtype}(args, 0)
    y = pointer_float32(args, 1)
    out = pointer_{dtype}(args, 2)
    k = thread_index(0) * 4
    store(out, k, saturated_{dtype}(add(cast_float32(load(x, k, 4)), load(y, k, 4))))
    store(out, k + 128, cast_{dtype}(load(y, k, 1)))
    store_scalar(out, k, cast_{dtype}(cast_float32(load_scalar(x, k))))
"""
    source, kind = KernelSource(NAME, "pairs", text), dtype.removeprefix("float8_").removesuffix("fn") + "x2"
    made = assembly(source, ARCHITECTURES["sm_90a"])
    assert made.count(f"cvt.rn.satfinite.{kind}.f32") == 4 and made.count(f"cvt.rn.f16x2.{kind}") == 3
    assert "e4m3x2" not in assembly(source, ARCHITECTURES["sm_80"])


def test_bfloat16_is_rounded_by_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer instructions for each element made attention in bfloat16 a third slower than in float16."""
    text = """THREADS = 32
SLOTS = 2


def kernel(args):
    x = pointer_float32(args, 0)
    out = pointer_bfloat16(args, 1)
    k = thread_index(0) * 8
    store(out, k, cast_bfloat16(load(x, k, 4)))
    store(out, k + 4, cast_bfloat16(load(x, k + 4, 1)))
    store_scalar(out, k + 5, cast_bfloat16(load_scalar(x, k + 5)))
"""
    source = KernelSource(NAME, "pairs", text)
    for arch, count in (("sm_90a", 4), ("sm_80", 4), ("sm_75", 0)):
        monkeypatch.setenv("MGX_GPU_ARCH", arch)
        assert assembly(source, ARCHITECTURES[arch]).count("cvt.rn.bf16x2.f32") == count, arch


@pytest.mark.parametrize("type", ["float", "half"])
def test_values_become_bfloat16(type: str, on: Engine) -> None:
    """Ties are rounded to even; infinities and NaN stay, and numbers beyond the largest become infinite."""
    numbers = [0.0, -0.0, 1.00390625, 1.01171875, -1.01171875, 3.3, np.inf, -np.inf, np.nan, 6e-8, 65504.0]
    own = Type.float_type if type == "float" else Type.half_type
    x, program = np.array(numbers + [3.4e38, 1e-40] * (type == "float"), own.numpy), Program()
    given = program.main.add_parameter("x", Shape(own, x.shape))
    program.main.add_return([program.main.add_instruction("convert", [given], target_type=Type.bf16_type)])
    (got,) = compiled(program, on).run({"x": x})
    wanted = x.astype(ml_dtypes.bfloat16)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    assert np.array_equal(got[~np.isnan(wanted)].view(np.uint16), wanted[~np.isnan(wanted)].view(np.uint16))


@pytest.mark.parametrize("dtype", ["double", "float", "int32"])
def test_a_float16_is_rounded_before_it_becomes_another_type(dtype: str, on: Engine) -> None:
    """The float16 value is computed in float32, in the same kernel."""
    x, program = np.array([1.0009765625, 1.001953125, 3.3, 99.7, 300, np.nan], np.float16), Program()
    m = program.main
    p = m.add_parameter("x", Shape(Type.half_type, x.shape))
    m.add_return([m.add_instruction("convert", [m.add_instruction("mul", [p, p])], target_type=dtype)])
    np.testing.assert_array_equal(compiled(program, on).run({"x": x})[0], reference(program, {"x": x}).results[0])
