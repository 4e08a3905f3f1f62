"""Intrinsics for arithmetic, comparison, logic and selection, on vectors and scalars.

Integer operations wrap and never trap: dividing by zero gives 0, shifting by the width or more gives what
NumPy gives. Float operations follow IEEE 754; those named ``_fast`` carry the fast-math flags ``nsz arcp
contract afn``.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from ..toolchain.numba_core import TypingError
from .builder import VectorBuilder, has_fma, is_signed
from .convert import convert, truth
from .vector import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Definition,
    KernelFunction,
    Values,
    describe,
    elementwise,
    kernel_function,
    value_type,
)

NUMBERS = (*FLOATS, *INTEGERS)
LOGICAL = ("bool", *INTEGERS)
_WIDE_QUOTIENT, _FUSED_QUOTIENT = 2.0**28, 2.0**52
"""Largest quotients of remainders without the C library: of float32, whose 24 bits times as many fit float64, and of
float64, whose units are whole numbers."""


def _is_float(dtype: str) -> bool:
    return dtype in FLOATS


def emit_add(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "bool":
        return b.or_(x, y)
    return b.add(x, y) if _is_float(dtype) else b.iadd(x, y)


def emit_sub(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "bool":
        return b.xor(x, y)
    return b.sub(x, y) if _is_float(dtype) else b.isub(x, y)


def emit_mul(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "bool":
        return b.and_(x, y)
    return b.mul(x, y) if _is_float(dtype) else b.imul(x, y)


def _divide_integers(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Quotient truncated toward zero, and i1 of where the divisor is zero and the quotient arbitrary."""
    zero = b.icmp("==", y, 0)
    y = b.select(zero, 1, y)
    if b.width(x) <= 32:
        # CPUs have no vector integer division; a float64 quotient of 32-bit integers truncates exactly.
        wide = b.div(convert(b, x, dtype, "float64"), convert(b, y, dtype, "float64"))
        bits = b.like(x, ir.IntType(64))
        whole = b.ir.fptosi(wide, bits) if b.width(x) == 32 else b.ir.fptosi(wide, b.like(x, ir.IntType(32)))
        return b.ir.trunc(whole, x.type), zero
    if not is_signed(dtype):
        return b.ir.udiv(x, y), zero
    # The lowest integer divided by -1 traps: negate instead.
    minus_one = b.icmp("==", y, -1)
    quotient = b.ir.sdiv(x, b.select(minus_one, 1, y))
    return b.select(minus_one, b.isub(0, quotient), quotient), zero


def _div(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if _is_float(dtype):
        return b.div(x, y)
    quotient, zero = _divide_integers(b.strict(), dtype, x, y)
    return b.select(zero, 0, quotient)


def _remainder(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return x - y * trunc(x / y) in float32 or float64, exactly; lanes that need more bits use the C library.

    The quotient of the magnitudes is rounded, so its whole part may be 1 too large, and only that: the remainder is
    then negative. Remainders are multiples of the smaller unit of x and y, so they are exact: of float32 in float64
    below `_WIDE_QUOTIENT`, since no product has more than 53 bits, and of float64 by a fused multiply-add.
    """
    single = b.width(x) == 32
    top, bottom = (b.widen(b.fabs(v)) if single else b.fabs(v) for v in (x, y))
    ratio = b.div(top, bottom)
    limit = _WIDE_QUOTIENT if single else _FUSED_QUOTIENT
    plain = b.ir.and_(b.fcmp("<", ratio, limit), b.fcmp("<", bottom, math.inf))
    whole = b.floor(ratio)
    rest = b.sub(top, b.mul(whole, bottom)) if single else b.fused(b.neg(whole), bottom, top)
    rest = b.select(b.fcmp("<", rest, 0.0), b.add(rest, bottom), rest)
    usual = b.copysign(b.narrow(rest) if single else rest, x)
    return b.per_rare_lane(b.not_(plain), usual, "fmodf" if single else "fmod", x, y)


def _fmod(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "float32":
        return _remainder(b.strict(), x, y)
    if dtype == "float64":
        return _remainder(b.strict(), x, y) if has_fma() else b.per_lane("fmod", x, y)
    quotient, zero = _divide_integers(b, dtype, x, y)
    return b.select(zero, 0, b.isub(x, b.imul(quotient, y)))


def _mod(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    rest = _fmod(b, dtype, x, y)
    if _is_float(dtype):
        return _fmod(b, dtype, b.add(rest, y), y)
    if not is_signed(dtype):
        return rest
    other_sign = b.icmp("<", b.xor(rest, y), 0)
    return b.select(b.and_(b.icmp("!=", rest, 0), other_sign), b.iadd(rest, y), rest)


def _extreme(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value, greatest: bool) -> ir.Value:
    if dtype == "bool":
        return b.or_(x, y) if greatest else b.and_(x, y)
    if not _is_float(dtype):
        return b.intrinsic(("s" if is_signed(dtype) else "u") + ("max" if greatest else "min"), [x, y])
    # Which operand x86 tests for NaN is the first: y is the one that more often is the same in all rounds of a loop.
    return b.intrinsic("maximum" if greatest else "minimum", [y, x], fastmath=b.flags or ("nsz",))


def emit_max(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return _extreme(b, dtype, x, y, True)


def emit_min(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return _extreme(b, dtype, x, y, False)


def emit_first_greater(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.first_greater(x, y)


def _neg(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.neg(x) if _is_float(dtype) else b.isub(0, x)


def _abs(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    if _is_float(dtype):
        return b.fabs(x)
    return b.intrinsic("abs", [x], extra=[ir.Constant(ir.IntType(1), 0)]) if is_signed(dtype) else x


def _sign(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    if _is_float(dtype):
        one = b.copysign(b.coerce(x, 1.0)[1], x)
        return b.select(b.fcmp("!=", b.fabs(x), 0.0), b.select(b.is_nan(x), x, one), 0.0)
    positive = b.ir.zext(b.icmp(">", x, 0, signed=is_signed(dtype)), x.type)
    return b.or_(positive, b.ashr(x, b.width(x) - 1)) if is_signed(dtype) else positive


def _sqrt(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.sqrt(x)


def _recip(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.div(1.0, x)


def _fma(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    if not _is_float(dtype):
        return b.iadd(b.imul(x, y), z)
    if dtype == "float32" and not has_fma():
        # The product is exact in float64; the sum is rounded there and again: one case of 2**28 differs.
        return b.narrow(b.ir.fadd(b.ir.fmul(b.widen(x), b.widen(y)), b.widen(z)))
    return b.fused(x, y, z)


def emit_integer_power(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y modulo the range, by squaring; for negative y truncated: 0, or x**y if x is 1 or -1."""
    signed = is_signed(dtype)
    base, exponent, result = b.reserve(x.type), b.reserve(x.type), b.reserve(x.type)
    for place, value in ((base, x), (exponent, y), (result, b.coerce(x, 1)[1])):
        b.ir.store(value, place)
    head, body, done = (b.ir.append_basic_block(f"power.{part}") for part in ("head", "body", "done"))
    b.ir.branch(head)
    b.ir.position_at_end(head)
    rest = b.ir.load(exponent)
    b.ir.cbranch(b.any(b.icmp("!=", rest, 0)), body, done)
    b.ir.position_at_end(body)
    factor, product = b.ir.load(base), b.ir.load(result)
    b.ir.store(b.select(b.icmp("==", b.and_(rest, 1), 0), product, b.imul(product, factor)), result)
    b.ir.store(b.imul(factor, factor), base)
    b.ir.store(b.lshr(rest, 1), exponent)
    b.ir.branch(head)
    b.ir.position_at_end(done)
    power = b.ir.load(result)
    if not signed:
        return power
    # The bits of a negative exponent have its parity, which is all that 1 and -1 need.
    unit = b.ir.or_(b.icmp("==", x, 1), b.icmp("==", x, -1))
    return b.select(b.ir.and_(b.icmp("<", y, 0), b.not_(unit)), 0, power)


def _rounding(intrinsic: str) -> Any:
    def emit(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
        return b.strict().intrinsic(intrinsic, [x]) if _is_float(dtype) else x

    return emit


def _comparison(relation: str) -> Any:
    def emit(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        if _is_float(dtype):
            return b.fcmp(relation, x, y)
        return b.icmp(relation, x, y, signed=is_signed(dtype))

    return emit


def extreme_comparison(relation: str) -> Any:
    """x relation best, NaN being beyond every number; `<=` and `>=` hold between two NaN."""

    def emit(b: VectorBuilder, dtype: str, x: ir.Value, best: ir.Value) -> ir.Value:
        if not _is_float(dtype):
            return b.icmp(relation, x, best, signed=is_signed(dtype))
        compared = b.fcmp(relation, x, best)
        if "=" in relation:
            return b.or_(compared, b.is_nan(x))
        return b.or_(compared, b.ir.and_(b.is_nan(x), b.not_(b.is_nan(best))))

    return emit


def _is_nan(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.is_nan(x) if _is_float(dtype) else b.constant(b.like(x, ir.IntType(1)), 0)


def _is_inf(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    if not _is_float(dtype):
        return b.constant(b.like(x, ir.IntType(1)), 0)
    return b.fcmp("==", b.fabs(x), float("inf"))


def _logical(operation: str) -> Any:
    def emit(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        return getattr(b, operation)(truth(b, x, dtype), truth(b, y, dtype))

    return emit


def _logical_not(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.not_(truth(b, x, dtype))


def _bitwise(operation: str) -> Any:
    def emit(b: VectorBuilder, dtype: str, *operands: ir.Value) -> ir.Value:
        return getattr(b, operation)(*operands)

    return emit


def _shift_left(b: VectorBuilder, dtype: str, x: ir.Value, count: ir.Value) -> ir.Value:
    inside = b.icmp("<", count, b.width(x), signed=False)
    return b.select(inside, b.shl(x, b.select(inside, count, 0)), 0)


def _shift_right(b: VectorBuilder, dtype: str, x: ir.Value, count: ir.Value) -> ir.Value:
    inside = b.icmp("<", count, b.width(x), signed=False)
    if is_signed(dtype):
        return b.ashr(x, b.select(inside, count, b.width(x) - 1))
    return b.select(inside, b.lshr(x, b.select(inside, count, 0)), 0)


@kernel_function
def where(condition: Any, x: Any, y: Any) -> Definition:
    kind, lanes = describe("where", condition)
    if kind != "bool":
        raise TypingError(f"where: the condition must be bool, got {condition}")
    kinds = [describe("where", operand) for operand in (x, y)]
    vectors = {operand for operand in kinds if operand[1]}
    dtype, count = vectors.pop() if vectors else kinds[0]
    count = count or lanes
    if vectors or (lanes and lanes != count):
        raise TypingError(f"where: operands must have one dtype and lane count, got {condition}, {x}, {y}")

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        b = VectorBuilder(builder)
        values = []
        for (own, width), value in zip(kinds, args[1:], strict=True):
            value = convert(b, value, own, dtype)
            values.append(b.splat(value, count) if count and not width else value)
        return builder.select(args[0], *values)

    given = [value_type(kind, lanes), *(value_type(*operand) for operand in kinds)]
    return value_type(dtype, count)(*given), emit


def _unchecked(operation: str) -> Any:
    def emit(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        return getattr(b.ir, operation)(x, y)

    return emit


def _binary(name: str, emit: Any, dtypes: tuple[str, ...] = NUMBERS, result: str | None = None) -> KernelFunction:
    return elementwise(name, emit, 2, dtypes, result, fast=name.endswith("_fast"))


def _unary(name: str, emit: Any, dtypes: tuple[str, ...] = NUMBERS, result: str | None = None) -> KernelFunction:
    return elementwise(name, emit, 1, dtypes, result, fast=name.endswith("_fast"))


add = _binary("add", emit_add, (*NUMBERS, "bool"))
sub = _binary("sub", emit_sub, (*NUMBERS, "bool"))
mul = _binary("mul", emit_mul, (*NUMBERS, "bool"))
div = _binary("div", _div)
add_fast = _binary("add_fast", emit_add)
sub_fast = _binary("sub_fast", emit_sub)
mul_fast = _binary("mul_fast", emit_mul)
fmod = _binary("fmod", _fmod)
mod = _binary("mod", _mod)
max = _binary("max", emit_max, (*NUMBERS, "bool"))
min = _binary("min", emit_min, (*NUMBERS, "bool"))
first_greater = _binary("first_greater", emit_first_greater, FLOATS)
fma = elementwise("fma", _fma, 3, NUMBERS)

neg = _unary("neg", _neg)
abs = _unary("abs", _abs)
sign = _unary("sign", _sign)
sqrt = _unary("sqrt", _sqrt, FLOATS)
recip = _unary("recip", _recip, FLOATS)
floor = _unary("floor", _rounding("floor"))
ceil = _unary("ceil", _rounding("ceil"))
nearbyint = _unary("nearbyint", _rounding("nearbyint"))

lt = _binary("lt", _comparison("<"), (*NUMBERS, "bool"), "bool")
le = _binary("le", _comparison("<="), (*NUMBERS, "bool"), "bool")
gt = _binary("gt", _comparison(">"), (*NUMBERS, "bool"), "bool")
ge = _binary("ge", _comparison(">="), (*NUMBERS, "bool"), "bool")
eq = _binary("eq", _comparison("=="), (*NUMBERS, "bool"), "bool")
ne = _binary("ne", _comparison("!="), (*NUMBERS, "bool"), "bool")
arg_lt = _binary("arg_lt", extreme_comparison("<"), result="bool")
arg_le = _binary("arg_le", extreme_comparison("<="), result="bool")
arg_gt = _binary("arg_gt", extreme_comparison(">"), result="bool")
arg_ge = _binary("arg_ge", extreme_comparison(">="), result="bool")
isnan = _unary("isnan", _is_nan, result="bool")
isinf = _unary("isinf", _is_inf, result="bool")

logical_and = _binary("logical_and", _logical("and_"), DTYPES, "bool")
logical_or = _binary("logical_or", _logical("or_"), DTYPES, "bool")
logical_xor = _binary("logical_xor", _logical("xor"), DTYPES, "bool")
logical_not = _unary("logical_not", _logical_not, DTYPES, "bool")
bitwise_and = _binary("bitwise_and", _bitwise("and_"), LOGICAL)
bitwise_or = _binary("bitwise_or", _bitwise("or_"), LOGICAL)
bitwise_xor = _binary("bitwise_xor", _bitwise("xor"), LOGICAL)
bitwise_not = _unary("bitwise_not", _bitwise("not_"), LOGICAL)
shift_left = _binary("shift_left", _shift_left, INTEGERS)
shift_right = _binary("shift_right", _shift_right, INTEGERS)

imin = _binary("imin", emit_min, ("int64",))
imax = _binary("imax", emit_max, ("int64",))
idiv = _binary("idiv", _unchecked("udiv"), ("int64",))
imod = _binary("imod", _unchecked("urem"), ("int64",))
