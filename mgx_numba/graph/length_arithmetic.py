"""Arithmetic on values with symbolic lengths among their elements, as models compute shapes.

A value is an object array of integers and `Dim`; a floating-point value may also hold floats and `Ratio`. Operators
keep their meaning: pointwise operators are evaluated through the scalar protocol, others move elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from ..core.dim import (
    Dim,
    Length,
    SymbolicLengthError,
    all_of,
    any_of,
    ceil_div,
    equal,
    hint,
    less,
    less_equal,
    maximum,
    minimum,
    negate,
    range_of,
    select,
)
from ..core.shape import Shape
from ..core.types import Type
from ..ops.base import Operator
from ..ops.reduce import ReduceOperator

MOST = 1 << 12
"""Most elements of a value that is folded: shapes have some tens."""

MOVING = frozenset(
    "gather concat slice step reverse squeeze unsqueeze reshape reshape_lazy transpose flatten contiguous"
    " broadcast multibroadcast scalar".split()
)
"""Operators whose result consists of elements of their first input (``concat``: of all inputs)."""

EXACT_BITS = {Type.half_type: 11, Type.bf16_type: 8, Type.float_type: 24, Type.double_type: 53}
"""Significand bits (IEEE 754; bfloat16 has 8): integers of at most this many bits are exact."""


class Ratio(NamedTuple):
    """A symbolic length divided by a power of two: an element of a floating-point type."""

    numerator: Dim
    denominator: int


class _Element(NamedTuple):
    """An element of a value, ``numerator / denominator`` exactly; the denominator is a power of two."""

    numerator: Length
    denominator: int
    type: Type


class _NotFoldable(Exception):
    """Raised if an operator's result does not follow exactly from lengths."""


def has_symbolic_elements(value: object) -> bool:
    """Return whether some element of a value is symbolic."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return False
    return any(isinstance(v, (Dim, Ratio)) for v in value.flat)


def array_of_lengths(values: Sequence[object], lens: Sequence[int]) -> np.ndarray:
    """Return an array of numbers and symbolic lengths; its type is int64 if all values are integers."""
    found = np.empty(len(values), object)
    found[:] = values
    if all(isinstance(v, int) for v in values):
        found = found.astype(np.int64)
    return found.reshape(tuple(lens))


def fold_lengths(
    op: Operator, output: Shape, inputs: Sequence[Shape], values: Sequence[np.ndarray]
) -> np.ndarray | None:
    """Return the value of an operator on values with symbolic elements; None if it does not follow exactly.

    Args:
        op: the operator; its attributes hold no symbolic length.
        output: shape of its result.
        inputs: shapes of its inputs.
        values: values of its inputs.
    """
    if output.is_dynamic or output.symbolic or output.elements > MOST:
        return None
    try:
        if op.name in MOVING:
            if op.name != "concat" and any(map(has_symbolic_elements, values[1:])):
                return None
            found = list(np.asarray(op.compute(output, values)).flat)
        elif op.pointwise:
            found = _pointwise(op, [i.type for i in inputs], values, output)
        elif isinstance(op, ReduceOperator) and len(values) == 1 and op.name in _REDUCTIONS:
            found = _reduced(op, inputs[0].type, values[0])
        else:
            return None
    except (_NotFoldable, SymbolicLengthError, AttributeError, ZeroDivisionError):
        return None
    if any(isinstance(v, (Dim, Ratio)) for v in found):
        return array_of_lengths([v.item() if isinstance(v, np.generic) else v for v in found], output.lens)
    return np.array(found, output.type.numpy).reshape(output.lens)


def _pointwise(op: Operator, types: Sequence[Type], values: Sequence[np.ndarray], output: Shape) -> list[object]:
    columns = zip(*(np.broadcast_to(v, output.lens).flat for v in values))
    return [_computed(op, types, column, output.type) for column in columns]


def _computed(op: Operator, types: Sequence[Type], column: Sequence[object], result: Type) -> Any:
    """Return one element of a pointwise operator's result."""
    if not any(isinstance(v, (Dim, Ratio)) for v in column):
        arrays = [np.array([v], type.numpy) for v, type in zip(column, types)]
        return np.asarray(op.compute(Shape(result, (1,)), arrays))[0]
    found = op.scalar(_HANDLER, *(_element(v, type) for v, type in zip(column, types)))  # type: ignore[attr-defined]
    return _value(found)


def _element(value: Any, type: Type) -> _Element:
    if isinstance(value, Ratio):
        return _Element(value.numerator, value.denominator, type)
    if isinstance(value, Dim):
        return _Element(value, 1, type)
    if type not in EXACT_BITS:
        return _Element(int(value), 1, type)
    if not isfinite(value):
        raise _NotFoldable
    return _Element(*float(value).as_integer_ratio(), type)


def _value(element: _Element) -> Dim | Ratio | float | int:
    numerator, denominator, type = element
    if isinstance(numerator, Dim):
        return numerator if denominator == 1 else Ratio(numerator, denominator)
    return numerator / denominator if type in EXACT_BITS else numerator


def _exact(numerator: Length, denominator: int, type: Type) -> _Element:
    """Return an element that its type represents exactly; a guard is recorded if that depends on the lengths."""
    if type in EXACT_BITS:
        most = 1 << EXACT_BITS[type]
        while denominator > 1 and (numerator.divisor % 2 == 0 if isinstance(numerator, Dim) else numerator % 2 == 0):
            numerator, denominator = numerator // 2, denominator // 2
        least = -most
        if denominator > most:
            raise _NotFoldable  # far below the normal range, or too many significant bits
    elif type is Type.bool_type:
        least, most = 0, 1
    elif type.is_integral and not type.is_narrow:
        info = np.iinfo(type.numpy)
        least, most = info.min, info.max
    else:
        raise _NotFoldable
    low, high = range_of(numerator)
    if type is not Type.int64_type:  # int64 holds every length
        if (low is None or low < least) and not _guarded(less_equal(least, numerator)):
            raise _NotFoldable
        if (high is None or high > most) and not _guarded(less_equal(numerator, most)):
            raise _NotFoldable
    return _Element(numerator, denominator, type)


def _guarded(condition: Length) -> bool:
    """Return a condition's answer; a guard is recorded if it is true: a value that is not folded is right, too."""
    return bool(hint(condition)) and bool(condition)


class _LengthScalar:
    """Handler of the scalar protocol on `_Element` values; an operation without a method here is not folded."""

    def dtype(self, x: _Element) -> Type:
        return x.type

    def const(self, value: float | int | bool, dtype: Type) -> _Element:
        return _element(value, dtype)

    def cast(self, x: _Element, dtype: Type) -> _Element:
        if dtype is Type.bool_type:
            return _Element(negate(equal(x.numerator, 0)), 1, dtype)
        if dtype in EXACT_BITS or x.denominator == 1:
            return _exact(x.numerator, x.denominator, dtype)
        return _exact(_truncated(x.numerator, x.denominator), 1, dtype)

    cast_loosely = cast

    def where(self, condition: _Element, a: _Element, b: _Element) -> _Element:
        p, q, over = _common(a, b)
        return _exact(select(negate(equal(condition.numerator, 0)), p, q), over, a.type)

    def fma(self, a: _Element, b: _Element, c: _Element) -> _Element:
        return self.add(self.mul(a, b), c)

    def add(self, a: _Element, b: _Element) -> _Element:
        p, q, over = _common(a, b)
        return _exact(p + q, over, _number(a))

    def sub(self, a: _Element, b: _Element) -> _Element:
        p, q, over = _common(a, b)
        return _exact(p - q, over, _number(a))

    def mul(self, a: _Element, b: _Element) -> _Element:
        return _exact(a.numerator * b.numerator, a.denominator * b.denominator, _number(a))

    def div(self, a: _Element, b: _Element) -> _Element:
        p, q, _ = _common(a, b)
        if a.type in EXACT_BITS:
            if isinstance(q, Dim) or not q:
                raise _NotFoldable
            sign, divisor = (-1, -q) if q < 0 else (1, q)
            if divisor & (divisor - 1):
                raise _NotFoldable
            return _exact(sign * p, divisor, a.type)
        return _exact(_truncated(p, q), 1, a.type)

    def mod(self, a: _Element, b: _Element) -> _Element:
        return _exact(a.numerator % _divisor(b.numerator), 1, _integral(a))

    def fmod(self, a: _Element, b: _Element) -> _Element:
        p, q = a.numerator, b.numerator
        return _exact(select(equal(q, 0), 0, p - _truncated(p, q) * q), 1, _integral(a))

    def min(self, a: _Element, b: _Element) -> _Element:
        p, q, over = _common(a, b)
        return _exact(minimum(p, q), over, a.type)

    def max(self, a: _Element, b: _Element) -> _Element:
        p, q, over = _common(a, b)
        return _exact(maximum(p, q), over, a.type)

    def neg(self, a: _Element) -> _Element:
        return _exact(-a.numerator, a.denominator, _number(a))

    def abs(self, a: _Element) -> _Element:
        return _exact(abs(a.numerator), a.denominator, _number(a))

    def floor(self, a: _Element) -> _Element:
        return _Element(a.numerator // a.denominator, 1, a.type)

    def ceil(self, a: _Element) -> _Element:
        return _Element(ceil_div(a.numerator, a.denominator), 1, a.type)

    def pow(self, a: _Element, b: _Element) -> _Element:
        if isinstance(b.numerator, Dim) or b.denominator != 1 or not 0 <= b.numerator <= 4:
            raise _NotFoldable
        return _exact(a.numerator**b.numerator, a.denominator**b.numerator, _number(a))

    def lt(self, a: _Element, b: _Element) -> _Element:
        p, q, _ = _common(a, b)
        return _Element(less(p, q), 1, Type.bool_type)

    def gt(self, a: _Element, b: _Element) -> _Element:
        return self.lt(b, a)

    def le(self, a: _Element, b: _Element) -> _Element:
        return self.logical_not(self.lt(b, a))

    def ge(self, a: _Element, b: _Element) -> _Element:
        return self.logical_not(self.lt(a, b))

    def eq(self, a: _Element, b: _Element) -> _Element:
        p, q, _ = _common(a, b)
        return _Element(equal(p, q), 1, Type.bool_type)

    def ne(self, a: _Element, b: _Element) -> _Element:
        return self.logical_not(self.eq(a, b))

    def logical_not(self, a: _Element) -> _Element:
        return _Element(equal(a.numerator, 0), 1, Type.bool_type)

    def logical_and(self, a: _Element, b: _Element) -> _Element:
        return _Element(all_of(_holds(a), _holds(b)), 1, Type.bool_type)

    def logical_or(self, a: _Element, b: _Element) -> _Element:
        return _Element(any_of(_holds(a), _holds(b)), 1, Type.bool_type)

    def logical_xor(self, a: _Element, b: _Element) -> _Element:
        return _Element(equal(_holds(a) + _holds(b), 1), 1, Type.bool_type)


_HANDLER = _LengthScalar()


def _holds(x: _Element) -> Length:
    found: Length = negate(equal(x.numerator, 0))
    return found


def _common(a: _Element, b: _Element) -> tuple[Length, Length, int]:
    """Return the numerators of two elements over their common denominator, and the denominator."""
    over = max(a.denominator, b.denominator)
    return a.numerator * (over // a.denominator), b.numerator * (over // b.denominator), over


def _number(x: _Element) -> Type:
    if x.type is Type.bool_type:  # a sum of bools is a disjunction
        raise _NotFoldable
    return x.type


def _integral(x: _Element) -> Type:
    if x.type in EXACT_BITS:
        raise _NotFoldable
    return _number(x)


def _divisor(x: Length) -> Length:
    """Return a divisor after checking that it is not negative; division by 0 gives 0, as in the IR."""
    low, _ = range_of(x)
    if low is None or low < 0:
        raise _NotFoldable
    return x


def _truncated(a: Length, b: Length) -> Length:
    """Return ``a / b`` rounded toward zero."""
    if isinstance(b, int) and b < 0:
        a, b = -a, -b
    _divisor(b)
    low, _ = range_of(a)
    if low is not None and low >= 0:
        return a // b
    return select(less(a, 0), -(-a // b), a // b)


_REDUCTIONS: dict[str, Callable[[_Element, _Element], _Element]] = {
    "reduce_sum": _HANDLER.add,
    "reduce_prod": _HANDLER.mul,
    "reduce_min": _HANDLER.min,
    "reduce_max": _HANDLER.max,
}


def _reduced(op: ReduceOperator, type: Type, value: np.ndarray) -> list[Any]:
    axes = {a % value.ndim for a in op.axes} or set(range(value.ndim))
    kept = [a for a in range(value.ndim) if a not in axes]
    rows = np.transpose(value, [*kept, *sorted(axes)]).reshape(*(value.shape[a] for a in kept), -1)
    if not rows.shape[-1]:
        raise _NotFoldable
    found = []
    for place in itertools.product(*map(range, rows.shape[:-1])):
        elements = map(partial(_element, type=type), rows[place])
        found.append(_value(reduce(_REDUCTIONS[op.name], elements)))
    return found
