"""Identities with units, zeros and inverses, one pointwise operation at a time."""

from __future__ import annotations

import numpy as np

from ....core.dim import hint, known_equal
from ....core.types import Type, finfo
from ...constants import compact, constant_array, uniform_value
from ...instruction import Instruction
from ...ranges import Ranges
from ..build import RewriteBuilder
from ..match import Match, becomes, constant, op, rule, scalar, some, spread
from .merging import WIDE, decides_rounding

NEAR = 8
"""Instructions that are looked through, one after another: a floor under a divisor is near to it."""
X, Y, C, ZERO = some("x"), some("y"), constant("c"), scalar(0.0, bind="zero")
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
    """Return whether a float constant is -0."""
    return ins.shape.type.is_floating and bool(np.signbit(np.float64(uniform_value(ins))))


def _keeps_zeros(m: Match) -> str | None:
    """Refuse ``x + 0`` and ``x - -0``, which are 0 where x is -0."""
    if m.ins.shape.type.is_floating and _negative_zero(m.zero) is (m.ins.name == "sub"):
        return "zeros would change their sign"
    return _not_bool(m)


def _from_negative_zero(m: Match) -> str | None:
    return _float_only(m) or (None if _negative_zero(m.zero) else "zeros would change their sign")


def _cube_check(m: Match) -> str | None:
    return _wide_only(m) if m.ins.shape.type.is_floating else None


def _decided(m: Match) -> str | None:
    return "the quotient is rounded later, where the last bit decides" if decides_rounding(m.ins) else None


def _divide_by_spread(m: Match) -> str | None:
    refused = _float_only(m) or _decided(m)
    if refused:
        return refused
    if hint(m.x.shape.elements) * 2 > hint(m.ins.shape.elements) or known_equal(m.x.shape.elements, 1):
        return "the divisor is not much smaller"  # before spans, which look at all constants near the divisor
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
    return b.op("mul", m.y, b.broadcast(b.op("recip", m.x), m.ins.shape.lens))  # y / spread(x) -> y * spread(1 / x)


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


def _rounded_check(m: Match) -> str | None:
    return _decided(m) or _reciprocal_check(m)


@rule("idempotent", op(" ".join(sorted(IDEMPOTENT)), op(" ".join(sorted(IDEMPOTENT)), bind="inner")), exact=True)
def apply_twice(m: Match, b: RewriteBuilder) -> object:
    return m.inner if m.inner.op == m.ins.op else "different operators"  # f(f(x)) -> f(x)


def _positive_zero(m: Match) -> str | None:
    return "the zero has a sign" if _negative_zero(m.zero) else None


@rule("where_const", op("where", scalar(bind="c"), some("x"), some("y")), exact=True)
def where_constant(m: Match, b: RewriteBuilder) -> object:
    return m.x if uniform_value(m.c) else m.y  # where(true, x, y) -> x


@rule("logical_const", op("logical_and logical_or", some("x"), scalar(bind="c")), exact=True)
def logical_constant(m: Match, b: RewriteBuilder) -> object:
    if m.x.shape.type is not m.ins.shape.type:
        return "the operand is not bool"
    # x and true -> x; x and false -> false; x or true -> true; x or false -> x
    return m.x if bool(uniform_value(m.c)) == (m.ins.name == "logical_and") else m.c


@rule("known_comparison", op("less less_or_equal greater greater_or_equal", some("x"), some("y")), exact=True)
def comparison_of_disjoint_ranges(m: Match, b: RewriteBuilder) -> object:
    """``iota >= 0 -> true``, as masks of attention in which no key is hidden begin."""
    if not m.x.shape.type.is_integral:
        return "floats may be NaN"
    ranges, (low, high) = Ranges(NEAR), (m.x, m.y)
    if m.ins.name.startswith("greater"):
        low, high = high, low
    (_, least, most), (_, floor, top) = ranges.span(low), ranges.span(high)
    equal_too = m.ins.name.endswith("equal")
    if most < floor or (equal_too and most == floor):
        return b.scalar(True, m.ins)
    if least > top or (not equal_too and least == top):
        return b.scalar(False, m.ins)
    return "either order is possible"


square = becomes("pow2", op("pow", X, scalar(2.0)), op("mul", X, X), exact=True)
reciprocal_of_root = becomes("rsqrt", op("recip", op("sqrt", X)), op("rsqrt", X), _wide_only, exact=True)
divide_by_root = becomes(
    "rsqrt", op("div", Y, spread(op("sqrt", X))), op("mul", Y, spread(op("rsqrt", X))), _float_only, exact=False
)
UNIT_RULES = (
    becomes("unit_ops", op("mul div", X, scalar(1.0)), X, exact=True),
    becomes("unit_ops", op("add sub", X, ZERO), X, _keeps_zeros, exact=True),
    becomes("unit_ops", op("add sub", X, scalar(0.0)), X, _not_bool, exact=False),  # but for the sign of 0
    becomes("neg_unit_ops", op("mul div", X, scalar(-1.0)), op("neg", X), exact=True),
    becomes("neg_unit_ops", op("sub", ZERO, X), op("neg", X), _from_negative_zero, exact=True),
    becomes("neg_unit_ops", op("neg", op("neg", X)), X, exact=True),
    becomes("neg_unit_ops", op("add", X, op("neg", Y)), op("sub", X, Y), exact=True),
    becomes("neg_unit_ops", op("sub", X, op("neg", Y)), op("add", X, Y), exact=True),
    becomes("zero_ops", op("mul", X, scalar(0.0)), scalar(0.0), _integers_only, exact=True),
    square,
    becomes("pow2", op("pow", X, scalar(3.0)), op("mul", op("mul", X, X), X), _cube_check, exact=True),
    becomes("pow2", op("pow", X, scalar(1.0)), X, exact=True),
    becomes("pow2", op("pow", X, scalar(0.0)), scalar(1.0), exact=True),  # for NaN too (IEEE 754-2019 section 9.2.1)
    becomes("pow2", op("pow", X, scalar(-1.0)), op("recip", X), _float_only, exact=True),
    becomes("pow2", op("pow", X, scalar(0.5)), op("sqrt", X), _float_only, exact=False),
    becomes("pow2", op("pow", X, scalar(-0.5)), op("rsqrt", X), _float_only, exact=False),
    reciprocal_of_root,
    becomes("rsqrt", op("div", scalar(1.0), X), op("recip", X), _float_only, exact=True),
    divide_by_root,
    divide_by_broadcast,
    becomes("sub_const", op("sub", X, C), op("add", X, op("neg", C)), _float_only, exact=True),
    becomes("div_const", op("div", X, C), op("mul", X, op("recip", C)), _power_check, exact=True),
    becomes("div_const", op("div", X, C), op("mul", X, op("recip", C)), _rounded_check, exact=False),
    apply_twice,
    becomes("max_zero", op("max", X, ZERO), op("relu", X), _positive_zero, exact=True),
    becomes("where_const", op("where", some("c"), X, X), X, exact=True),
    where_constant,
    logical_constant,
    comparison_of_disjoint_ranges,
)


def normal_reciprocal(least: float, greatest: float, type: Type) -> bool:
    """Return whether every divisor of a size between these has a reciprocal that is finite and has all its bits."""
    numbers = finfo(type.numpy)
    tiny, largest = float(numbers.smallest_normal), float(numbers.max)
    return least >= max(tiny, 1 / largest) and greatest <= min(largest, 1 / tiny)
