"""Intrinsics for elementary functions on float32 and float64, vectors and scalars.

float32 results are within 2 ulp of the exact value over the whole range, subnormals included. float64 results
are within 4 ulp, except where x times an exponential is subnormal, and in the tail of gelu_tanh, whose
argument to the exponential is rounded.

Names ending in ``_fast`` are cheaper float32 versions within 4 ulp, which honour infinities and NaN
and may flush results below 2**-125 (of a product with x: that factor) to zero. On float64 they are the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from . import math32, math64
from . import polynomials as table
from .arith import emit_integer_power
from .builder import VectorBuilder
from .registers import fills_registers
from .vector import FLOATS, INTEGERS, KernelFunction, elementwise

Emit = Callable[..., ir.Value]


def _through_float64(emit: Emit) -> Emit:
    """A float32 function computed in float64 lanes."""

    def narrow(b: VectorBuilder, *x: ir.Value) -> ir.Value:
        return b.narrow(emit(b, *(b.widen(v) for v in x)))

    return narrow


def _trigonometric(short: Emit, library: str) -> Emit:
    """`short` in float64 for the angles it can reduce; a lane with a larger one goes to the C library."""

    def emit(b: VectorBuilder, x: ir.Value) -> ir.Value:
        return b.per_rare_lane(math64.large_angle(b, x), _through_float64(short)(b, x), library, x)

    return emit


def _library(name: str) -> Emit:
    return lambda b, *x: b.per_lane(name, *x)


def _rsqrt(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(1.0, b.sqrt(x))


def _over_power_075(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    if b.width(y) == 32 and fills_registers(b, y):
        return math32.over_power_075(b, x, y)
    root = b.sqrt(y)
    return b.div(x, b.mul(root, b.sqrt(root)))


def _sigmoid_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    z = math64.exp(b, b.neg(b.fabs(x)))
    return b.div(b.select(b.fcmp("<", x, 0.0), z, 1.0), b.add(z, 1.0))


def _silu_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.mul(x, _sigmoid_64(b, x))


def _gelu_erf_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.mul(x, b.mul(b.per_lane("erfc", b.mul(x, -table.ROOT_HALF)), 0.5))


def _gelu_tanh_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    scale = 2.0 * table.GELU_SCALE
    return b.mul(x, _sigmoid_64(b, b.mul(x, b.muladd(b.mul(x, x), table.GELU_CUBIC * scale, scale))))


def _softplus_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    z = math64.exp(b, b.neg(b.fabs(x)))
    return b.add(b.first_greater(0.0, x), b.per_lane("log1p", z))


def _mish_64(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.mul(x, math64.tanh(b, _softplus_64(b, x)))


SINGLE: dict[str, Emit] = {}
"""The float32 versions by name."""


def _function(name: str, single: Emit, double: Emit, arity: int = 1) -> KernelFunction:
    """Intrinsic `name` with its float32 and float64 versions."""
    SINGLE[name] = single

    def emit(b: VectorBuilder, dtype: str, *x: ir.Value) -> ir.Value:
        return (single if dtype == "float32" else double)(b, *x)

    return elementwise(name, emit, arity, FLOATS)


def _short(name: str) -> Any:
    """A function with a ``_short`` version in `math64`; the C library's serves float64."""
    return _function(name, _through_float64(getattr(math64, f"{name}_short")), _library(name))


def _emit_pow(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "float32":
        return SINGLE["pow"](b, x, y)
    return b.per_lane("pow", x, y) if dtype == "float64" else emit_integer_power(b, dtype, x, y)


exp = _function("exp", math32.exp, math64.exp)
exp_fast = _function("exp_fast", math32.exp_fast, math64.exp)
log = _function("log", math32.log, math64.log)
log2 = _short("log2")
erf = _function("erf", math32.erf, _library("erf"))
sin = _function("sin", _trigonometric(math64.sin_short, "sinf"), math64.sin)
cos = _function("cos", _trigonometric(math64.cos_short, "cosf"), math64.cos)
tan = _function("tan", _trigonometric(math64.tan_short, "tanf"), _library("tan"))
asin = _function("asin", math32.asin, _library("asin"))
acos = _function("acos", math32.acos, _library("acos"))
atan = _short("atan")
sinh, cosh = _short("sinh"), _short("cosh")
tanh = _function("tanh", math32.tanh, math64.tanh)
tanh_fast = _function("tanh_fast", math32.tanh_fast, math64.tanh)
asinh, acosh, atanh = _short("asinh"), _short("acosh"), _short("atanh")
sigmoid = _function("sigmoid", math32.sigmoid, _sigmoid_64)
sigmoid_fast = _function("sigmoid_fast", math32.sigmoid_fast, _sigmoid_64)
rsqrt = _function("rsqrt", _rsqrt, _rsqrt)
over_power_075 = _function("over_power_075", _over_power_075, _over_power_075, 2)
SINGLE["pow"] = _through_float64(math64.pow_short)
pow = elementwise("pow", _emit_pow, 2, (*FLOATS, *INTEGERS))
gelu_erf = _function("gelu_erf", _through_float64(math64.gelu_erf_short), _gelu_erf_64)
gelu_erf_fast = _function("gelu_erf_fast", math32.gelu_erf_fast, _gelu_erf_64)
gelu_tanh = _function("gelu_tanh", _through_float64(math64.gelu_tanh_short), _gelu_tanh_64)
gelu_tanh_fast = _function("gelu_tanh_fast", math32.gelu_tanh_fast, _gelu_tanh_64)
silu = _function("silu", _through_float64(math64.silu_short), _silu_64)
silu_fast = _function("silu_fast", math32.silu_fast, _silu_64)
softplus = _function("softplus", _through_float64(math64.softplus_short), _softplus_64)
softplus_fast = _function("softplus_fast", math32.softplus_fast, _softplus_64)
mish = _function("mish", _through_float64(math64.mish_short), _mish_64)
