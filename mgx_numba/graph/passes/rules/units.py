"""Identities with units, zeros and inverses, one pointwise operation at a time."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ....core.dim import hint, known_equal
from ....core.types import Type
from ...constants import compact, constant_array, uniform_value
from ...instruction import Instruction
from ...ranges import Ranges
from ..build import RewriteBuilder
from ..match import Match, constant, op, rule, scalar, some, spread
from .merging import WIDE, rounds_next

NEAR = 8
"""Instructions that are looked through, one after another: a floor under a divisor is near to it."""
IDEMPOTENT = frozenset({"relu", "abs", "floor", "ceil", "nearbyint", "sign"})


def _float_only(m: Match) -> str | None:
    return None if m.ins.shape.type.is_floating else "integers truncate"


def _integers_only(m: Match) -> str | None:
    return "it is NaN of what is not finite" if m.ins.shape.type.is_floating else None


def _not_bool(m: Match) -> str | None:
    return "add of bools is or" if m.ins.shape.type is Type.bool_type else None


def _wide_only(m: Match) -> str | None:
    return None if m.ins.shape.type in WIDE else "the inner result is rounded to a narrow type"


def _negative_zero(ins: Instruction) -> bool:
    """Whether a constant of floats is 0 with a sign."""
    return ins.shape.type.is_floating and bool(np.signbit(np.float64(uniform_value(ins))))


@rule("unit_ops", op("mul div", some("x"), scalar(1.0)), exact=True)
def multiply_by_one(m: Match, b: RewriteBuilder) -> object:
    return m.x  # x * 1 -> x; x / 1 -> x


def _keeps_zeros(m: Match) -> str | None:
    """Refuse ``x + 0`` and ``x - -0``, which are 0 where x is -0."""
    if m.ins.shape.type.is_floating and _negative_zero(m.zero) is (m.ins.name == "sub"):
        return "zeros would change their sign"
    return _not_bool(m)


@rule("unit_ops", op("add sub", some("x"), scalar(0.0, bind="zero")), _keeps_zeros, exact=True)
def add_neutral_zero(m: Match, b: RewriteBuilder) -> object:
    return m.x  # x + -0 -> x; x - 0 -> x


@rule("unit_ops", op("add sub", some("x"), scalar(0.0)), _not_bool, exact=False)
def add_zero(m: Match, b: RewriteBuilder) -> object:
    return m.x  # x + 0 -> x; x - -0 -> x, but for the sign of 0


@rule("neg_unit_ops", op("mul div", some("x"), scalar(-1.0)), exact=True)
def multiply_by_minus_one(m: Match, b: RewriteBuilder) -> object:
    return b.op("neg", m.x)  # x * -1 -> -x; x / -1 -> -x


def _from_negative_zero(m: Match) -> str | None:
    return _float_only(m) or (None if _negative_zero(m.zero) else "zeros would change their sign")


@rule("neg_unit_ops", op("sub", scalar(0.0, bind="zero"), some("x")), _from_negative_zero, exact=True)
def subtract_from_negative_zero(m: Match, b: RewriteBuilder) -> object:
    return b.op("neg", m.x)  # -0 - x -> -x


@rule("neg_unit_ops", op("neg", op("neg", some("x"))), exact=True)
def negate_twice(m: Match, b: RewriteBuilder) -> object:
    return m.x  # -(-x) -> x


@rule("neg_unit_ops", op("add", some("x"), op("neg", some("y"))), exact=True)
def add_negative(m: Match, b: RewriteBuilder) -> object:
    return b.op("sub", m.x, m.y)  # x + -y -> x - y


@rule("neg_unit_ops", op("sub", some("x"), op("neg", some("y"))), exact=True)
def subtract_negative(m: Match, b: RewriteBuilder) -> object:
    return b.op("add", m.x, m.y)  # x - -y -> x + y


@rule("zero_ops", op("mul", some("x"), scalar(0.0)), _integers_only, exact=True)
def multiply_by_zero(m: Match, b: RewriteBuilder) -> object:
    return b.scalar(0, m.ins)  # x * 0 -> 0


@rule("pow2", op("pow", some("x"), scalar(2.0)), exact=True)
def square(m: Match, b: RewriteBuilder) -> object:
    return b.op("mul", m.x, m.x)  # pow(x, 2) -> x * x


def _cube_check(m: Match) -> str | None:
    return _wide_only(m) if m.ins.shape.type.is_floating else None


@rule("pow2", op("pow", some("x"), scalar(3.0)), _cube_check, exact=True)
def cube(m: Match, b: RewriteBuilder) -> object:
    return b.op("mul", b.op("mul", m.x, m.x), m.x)  # pow(x, 3) -> x * x * x


@rule("pow2", op("pow", some("x"), scalar(1.0)), exact=True)
def first_power(m: Match, b: RewriteBuilder) -> object:
    return m.x  # pow(x, 1) -> x


@rule("pow2", op("pow", some("x"), scalar(0.0)), exact=True)
def zeroth_power(m: Match, b: RewriteBuilder) -> object:
    return b.scalar(1, m.ins)  # pow(x, 0) -> 1, for NaN too (IEEE 754-2019 section 9.2.1)


@rule("pow2", op("pow", some("x"), scalar(-1.0)), _float_only, exact=True)
def inverse_power(m: Match, b: RewriteBuilder) -> object:
    return b.op("recip", m.x)  # pow(x, -1) -> 1 / x


@rule("pow2", op("pow", some("x"), scalar(0.5)), _float_only, exact=False)
def square_root_power(m: Match, b: RewriteBuilder) -> object:
    return b.op("sqrt", m.x)  # pow(x, 1/2) -> sqrt(x)


@rule("pow2", op("pow", some("x"), scalar(-0.5)), _float_only, exact=False)
def reciprocal_root_power(m: Match, b: RewriteBuilder) -> object:
    return b.op("rsqrt", m.x)  # pow(x, -1/2) -> rsqrt(x)


@rule("rsqrt", op("recip", op("sqrt", some("x"))), _wide_only, exact=True)
def reciprocal_of_root(m: Match, b: RewriteBuilder) -> object:
    return b.op("rsqrt", m.x)  # 1 / sqrt(x) -> rsqrt(x)


@rule("rsqrt", op("div", scalar(1.0), some("x")), _float_only, exact=True)
def one_over(m: Match, b: RewriteBuilder) -> object:
    return b.op("recip", m.x)  # 1 / x -> recip(x)


@rule("rsqrt", op("div", some("y"), spread(op("sqrt", some("x")))), _float_only, exact=False)
def divide_by_root(m: Match, b: RewriteBuilder) -> object:
    root = b.op("rsqrt", m.x)
    return b.op("mul", m.y, b.broadcast(root, m.ins.shape.lens))  # y / sqrt(x) -> y * rsqrt(x)


def _divide_by_spread(m: Match) -> str | None:
    refused = _float_only(m)
    if refused:
        return refused
    type, (_, low, high) = m.ins.shape.type, Ranges(NEAR).span(m.x)
    least = max(low, -high)
    # Reciprocals of the largest float32 and float64 lose two bits at most; those of float16 lose nearly all.
    greatest = least if type in (Type.float_type, Type.double_type) else max(-low, high)
    return None if normal_reciprocal(least, greatest, type) else "some divisor may have no normal reciprocal"


@rule(
    "recip_broadcast",
    op("div", some("y"), op("multibroadcast", some("x"), bind="wide")),
    _divide_by_spread,
    exact=False,
)
def divide_by_broadcast(m: Match, b: RewriteBuilder) -> object:
    if hint(m.x.shape.elements) * 2 > hint(m.ins.shape.elements) or known_equal(m.x.shape.elements, 1):
        return "the divisor is not much smaller"
    return b.op("mul", m.y, b.broadcast(b.op("recip", m.x), m.ins.shape.lens))  # y / spread(x) -> y * spread(1 / x)


@rule("sub_const", op("sub", some("x"), constant("c")), _float_only, exact=True)
def subtract_constant(m: Match, b: RewriteBuilder) -> object:
    return b.op("add", m.x, b.op("neg", m.c))  # x - c -> x + (-c)


def _reciprocal_check(m: Match) -> str | None:
    if not m.ins.shape.type.is_floating:
        return "integers truncate"
    values = constant_array(m.c)
    if values is None or values.size == 0:
        return "no value"
    size = np.abs(compact(values).astype(np.float64))
    if not normal_reciprocal(float(size.min()), float(size.max()), m.ins.shape.type):
        return "some divisor has no normal reciprocal"
    return None


def _power_check(m: Match) -> str | None:
    reason, values = _reciprocal_check(m), constant_array(m.c)
    if reason is not None or values is None:
        return reason
    fractions = np.frexp(compact(values).astype(np.float64))[0]
    return None if (np.abs(fractions) == 0.5).all() else "some divisor is no power of two"


@rule("div_const", op("div", some("x"), constant("c")), _power_check, exact=True)
def divide_by_power_of_two(m: Match, b: RewriteBuilder) -> object:
    return b.op("mul", m.x, b.op("recip", m.c))  # x / 2**n -> x * 2**-n


def _rounded_check(m: Match) -> str | None:
    return "the quotient is rounded next, where the last bit decides" if rounds_next(m.ins) else _reciprocal_check(m)


@rule("div_const", op("div", some("x"), constant("c")), _rounded_check, exact=False)
def divide_by_constant(m: Match, b: RewriteBuilder) -> object:
    return b.op("mul", m.x, b.op("recip", m.c))  # x / c -> x * (1 / c)


@rule("idempotent", op(" ".join(sorted(IDEMPOTENT)), op(" ".join(sorted(IDEMPOTENT)), bind="inner")), exact=True)
def apply_twice(m: Match, b: RewriteBuilder) -> object:
    return m.inner if m.inner.op == m.ins.op else "different operators"  # f(f(x)) -> f(x)


@rule("same_operands", op("max min logical_and logical_or bitwise_and bitwise_or", some("x"), some("x")), exact=True)
def same_operands(m: Match, b: RewriteBuilder) -> object:
    return m.x if m.x.shape.type is m.ins.shape.type else "the result is bool"  # max(x, x) -> x


def _positive_zero(m: Match) -> str | None:
    return "the zero has a sign" if _negative_zero(m.zero) else None


@rule("max_zero", op("max", some("x"), scalar(0.0, bind="zero")), _positive_zero, exact=True)
def max_zero(m: Match, b: RewriteBuilder) -> object:
    return b.op("relu", m.x)  # max(x, 0) -> relu(x)


@rule("where_const", op("where", some("c"), some("x"), some("x")), exact=True)
def where_same(m: Match, b: RewriteBuilder) -> object:
    return m.x  # where(c, x, x) -> x


@rule("where_const", op("where", scalar(bind="c"), some("x"), some("y")), exact=True)
def where_constant(m: Match, b: RewriteBuilder) -> object:
    return m.x if uniform_value(m.c) else m.y  # where(true, x, y) -> x


@rule("logical_const", op("logical_and logical_or", some("x"), scalar(bind="c")), exact=True)
def logical_constant(m: Match, b: RewriteBuilder) -> object:
    if m.x.shape.type is not m.ins.shape.type:
        return "the operand is not bool"
    # x and true -> x; x and false -> false; x or true -> true; x or false -> x
    return m.x if bool(uniform_value(m.c)) == (m.ins.name == "logical_and") else m.c


UNIT_RULES = (
    multiply_by_one,
    add_neutral_zero,
    add_zero,
    multiply_by_minus_one,
    subtract_from_negative_zero,
    negate_twice,
    add_negative,
    subtract_negative,
    multiply_by_zero,
    square,
    cube,
    first_power,
    zeroth_power,
    inverse_power,
    square_root_power,
    reciprocal_root_power,
    reciprocal_of_root,
    one_over,
    divide_by_root,
    divide_by_broadcast,
    subtract_constant,
    divide_by_power_of_two,
    divide_by_constant,
    apply_twice,
    same_operands,
    max_zero,
    where_same,
    where_constant,
    logical_constant,
)


def normal_reciprocal(least: float, greatest: float, type: Type) -> bool:
    """Return whether every divisor of a size between these has a reciprocal that is finite and has all its bits."""
    numbers = ml_dtypes.finfo(type.numpy)
    tiny, largest = float(numbers.smallest_normal), float(numbers.max)
    return least >= max(tiny, 1 / largest) and greatest <= min(largest, 1 / tiny)
