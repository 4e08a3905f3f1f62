"""Approximate elementary float32 functions for fast math: the CPU's algorithms with approximate division and the
hardware's power of two.

``gelu_erf_short`` is for 16-bit results: within an eighth of a unit in the last place of float16, and 1e-7.
``gelu_erf_bytes`` is for results that are rounded to 8 bits: within 3e-5, a twentieth of a step of the smallest range
that contains the function's negative values, and within 1e-7 of large numbers.

Division errs by at most 2 units in the last place, and gives 0 for divisors beyond 2**126. Results stay within 4 units
(``gelu_erf_quick`` within 5: at most 4.4 for 800,000 arguments on an H200); results below 2**-125 may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ...lang import math32, polynomials
from ...lang.builder import Operand, VectorBuilder
from ...lang.vector import KernelFunction, elementwise
from .threads import call, target

_LOWEST = -104.0
"""Argument below which exp is 0 in float32."""
_LOG2_E = float.fromhex("0x1.715476p+0")
"""log2(e) rounded to float32, and its rounding error."""
_LOG2_E_LOW = float.fromhex("0x1.4ae0cp-26")
_LN_2 = math.log(2.0)
_LN_2_HIGH = float.fromhex("0x1.62e430p-1")
"""ln 2 rounded to float32, and its rounding error."""
_LN_2_LOW = _LN_2 - _LN_2_HIGH
_NORMAL_LIMIT = 14.5
"""Argument from which the normal distribution's tail is 0 in float32."""
LOGIT_END = 5.7**2
"""Square of the argument from which the error of the normal distribution function is less than 1e-7 of the result."""
LOGIT = (2.30169594, 0.105623215, -4.55866804e-4, -8.80204910e-5, 4.63737545e-6, -7.78300798e-8)
"""Coefficients in x**2 of log2(p / (1 - p)) / x, p the normal distribution function: least-squares fit on [0, 5.7],
reweighted to minimise the largest error of x p in units of float16."""

LOGIT_BYTES_END = 4.0**2
"""As `LOGIT_END` for 8-bit results: beyond it the error is less than 3.2e-5 of the argument."""
LOGIT_BYTES = (2.30112134, 0.106775724, -1.01426312e-3)
"""As `LOGIT` with fewer coefficients; the largest error of x p is 2.5e-5."""


class _Approximate(VectorBuilder):
    """A builder with approximate division: a reciprocal instruction and a product."""

    def strict(self) -> VectorBuilder:
        """Return this builder; intrinsics take no fast-math flags here."""
        return self

    def div(self, x: Operand, y: Operand) -> ir.Value:
        return self.ir.fdiv(*self.coerce(x, y), flags=("arcp", "afn"))


def _of(name: str, emit: Callable[..., ir.Value]) -> KernelFunction:
    return elementwise(name, lambda b, dtype, x: emit(_Approximate(b.ir), x), 1, ("float32",))


def _quick(name: str) -> Any:
    return _of(f"{name}_quick", getattr(math32, f"{name}_fast"))


def _power_of_two(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return 2**x for each lane, within 2 units in the last place; results below 2**-126 are 0."""
    return _each(b, "llvm.nvvm.ex2.approx.ftz.f32" if target().nvidia else "llvm.amdgcn.exp2.f32", x)


def _reciprocal(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return 1 / x for each lane, within one unit in the last place; results below 2**-126 are 0."""
    return _each(b, "llvm.nvvm.rcp.approx.ftz.f" if target().nvidia else "llvm.amdgcn.rcp.f32", x)


def _each(b: VectorBuilder, name: str, x: ir.Value) -> ir.Value:
    """Apply a float32 LLVM intrinsic to each lane."""
    if not b.lanes(x):
        return call(b.ir, name, x.type, [x])
    result = ir.Constant(x.type, ir.Undefined)
    for k in range(b.lanes(x)):
        one = call(b.ir, name, x.type.element, [b.extract(x, k)])
        result = b.ir.insert_element(result, one, ir.Constant(ir.IntType(32), k))
    return result


def _exp(b: VectorBuilder, x: ir.Value) -> ir.Value:
    x = b.first_greater(_LOWEST, x)  # lets NaN through
    product = b.mul(x, _LOG2_E)
    lost = b.fused(x, _LOG2_E_LOW, b.fused(x, _LOG2_E, b.neg(product)))
    power = _power_of_two(b, product)
    exact = b.fused(power, b.mul(lost, _LN_2), power)
    return b.select(b.fcmp("<", power, float("inf")), exact, power)


def _sigmoid(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(1.0, b.add(_exp(b, b.neg(x)), 1.0))


def _silu(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(x, b.add(_exp(b, b.neg(x)), 1.0))


def _gelu_erf(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # as `math32.gelu_erf_fast`; minnum gives a limit for NaN, which comes back with what is added
    a = b.intrinsic("minnum", [_NORMAL_LIMIT, b.fabs(x)])
    half = b.mul(a, 0.5)
    square = b.mul(a, half)
    product = b.mul(square, -_LOG2_E)
    # what the power's argument lost: of ln 2, of its own rounding, and of the square's
    lost = b.fused(product, -_LN_2_LOW, b.fused(product, -_LN_2_HIGH, b.neg(square)))
    lost = b.sub(lost, b.fused(a, half, b.neg(square)))
    power = _power_of_two(b, product)
    power = b.fused(power, lost, power)
    below = b.add(a, polynomials.NORMAL_TAIL_SCALE)
    inverse = _reciprocal(b, below)
    part = b.mul(a, inverse)
    part = b.fused(b.fused(b.neg(part), below, a), inverse, part)
    smooth = b.polynomial(b.sub(polynomials.NORMAL_TAIL_CENTER, part), polynomials.NORMAL_TAIL_32)
    positive = b.sub(x, b.intrinsic("minnum", [x, 0.0]))
    return b.fused(b.neg(b.mul(part, smooth)), power, positive)


def _gelu_erf_short(
    b: VectorBuilder, x: ir.Value, logit: tuple[float, ...] = LOGIT, end: float = LOGIT_END
) -> ir.Value:
    square = b.first_less(end, b.mul(x, x))  # lets NaN through
    power = _power_of_two(b, b.mul(x, b.polynomial(square, tuple(-c for c in logit))))
    return b.mul(x, _reciprocal(b, b.add(power, 1.0)))


def _gelu_erf_bytes(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return _gelu_erf_short(b, x, LOGIT_BYTES, LOGIT_BYTES_END)


def gelu_erf_of_bytes(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return float32 ``gelu_erf_bytes`` for use inside intrinsics."""
    return _gelu_erf_bytes(_Approximate(builder), x)


exp2_quick = _of("exp2_quick", _power_of_two)
reciprocal_quick = _of("reciprocal_quick", _reciprocal)
exp_quick = _of("exp_quick", _exp)
gelu_erf_quick = _of("gelu_erf_quick", _gelu_erf)
gelu_erf_bytes = _of("gelu_erf_bytes", _gelu_erf_bytes)
gelu_erf_short = _of("gelu_erf_short", _gelu_erf_short)
gelu_tanh_quick = _quick("gelu_tanh")
sigmoid_quick = _of("sigmoid_quick", _sigmoid)
silu_quick = _of("silu_quick", _silu)
softplus_quick = _quick("softplus")
tanh_quick = _quick("tanh")
