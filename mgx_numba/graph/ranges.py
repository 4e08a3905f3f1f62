"""Value-range analysis: intervals that contain the elements of a value, derived from the instructions that compute it.

It decides whether indices need a bounds check, and whether divisors have normal reciprocals.

Intervals hold for computed values, not for exact arithmetic. Integers that may wrap around span their whole type, and
ends of floats are moved outward by the possible rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.dim import is_symbolic, range_of
from ..core.shape import UNBOUNDED, DynamicDimension
from ..core.types import Type, finfo
from ..ops.base import Pointwise
from ..ops.scalar import TypeScalar
from .constants import compact, constant_array, is_constant
from .instruction import Instruction

DEEPEST = 100
"""Longest chain of instructions that is followed: it bounds Python's stack and exceeds any index computation."""
SAME = frozenset(
    "reshape reshape_lazy transpose squeeze unsqueeze flatten slice step reverse contiguous layout identity broadcast"
    " multibroadcast broadcast_with_dims scalar gather gather_elements gathernd scan_slice".split()
)
"""Operators whose elements are elements of their first input."""


class Span(NamedTuple):
    """The interval of a type's numbers from ``low`` to ``high``; floats may also be NaN. Ends of integers are int."""

    type: Type
    low: float
    high: float

    @classmethod
    def whole(cls, type: Type) -> Span:
        """Return the span of all values of the type."""
        if not type.is_integral:
            return cls(type, -math.inf, math.inf)
        if type is Type.bool_type:
            return cls(type, 0, 1)
        info = np.iinfo(type.numpy)
        return cls(type, int(info.min), int(info.max))

    def within(self, low: int, high: int) -> bool:
        """Return whether the span is of integers and contained in ``[low, high]``."""
        return self.type.is_integral and low <= self.low and self.high <= high

    def union(self, other: Span) -> Span:
        """Return the smallest span that contains both spans."""
        return Span(self.type, min(self.low, other.low), max(self.high, other.high))


class Ranges:
    """Spans of instructions, cached; so the program must not change."""

    def __init__(self, deepest: int = DEEPEST) -> None:
        """Create the analysis; ``deepest`` is the longest chain of instructions that is followed."""
        self._deepest = deepest
        self._found: dict[Instruction, Span] = {}
        self._modules: dict[Instruction, list[Span | None]] = {}
        self._depth = 0

    def span(self, ins: Instruction) -> Span:
        """Return the span that contains the elements of a value."""
        if ins not in self._found:
            whole = Span.whole(ins.shape.type)
            if self._depth >= self._deepest:
                return whole
            self._depth += 1
            try:
                self._found[ins] = self._span(ins, whole)
            finally:
                self._depth -= 1
        return self._found[ins]

    def along(self, ins: Instruction, axis: int) -> list[Span]:
        """Return the span for each position of an axis of fixed length."""
        length = ins.shape.dims[axis].min
        if is_symbolic(length):
            return []
        name, inputs = ins.name, ins.inputs
        found: list[Span] | None = None
        if ins.literal is not None and ins.literal.array is not None and ins.shape.elements:
            found = [_of_array(part, ins.shape.type) for part in np.moveaxis(ins.literal.array, axis, 0)]
        elif name == "nonzero" and axis == 0:
            found = [Span(ins.shape.type, 0, max(_most(d) - 1, 0)) for d in inputs[0].shape.dims]
        elif name == "concat":
            parts = [self.along(i, axis) for i in inputs]
            if ins.op.axis % ins.shape.ndim == axis:  # type: ignore[attr-defined]
                found = [span for part in parts for span in part]
            else:
                found = [_union(column) for column in zip(*parts, strict=True)]
        elif name == "transpose":
            found = self.along(inputs[0], ins.op.permutation[axis])  # type: ignore[attr-defined]
        elif name in ("contiguous", "identity"):
            found = self.along(inputs[0], axis)
        elif name == "convert":
            found = [_Arithmetic().cast(s, ins.shape.type) for s in self.along(inputs[0], axis)]
        return found if found is not None and len(found) == length else [self.span(ins)] * length

    def _span(self, ins: Instruction, whole: Span) -> Span:
        name, inputs = ins.name, ins.inputs
        array = constant_array(ins) if is_constant(ins) else None
        if array is not None:
            return _of_array(array, whole.type)
        if name in SAME:
            return self.span(inputs[0])
        if name in _REDUCED:
            return self._reduced(ins, whole)
        if name == "bit_cast":
            source = self.span(inputs[0])
            known = inputs[0].shape.type.is_integral and source.low >= 0
            return _fitting(whole.type, source.low, source.high) if known and whole.type.is_integral else whole
        if name == "concat":
            return _union([self.span(i) for i in inputs])
        if name in ("argmax", "argmin"):
            return _positions(inputs[0], ins.op.axis, whole)  # type: ignore[attr-defined]
        if name == "iota":
            return _positions(ins, 0, whole)
        if name == "nonzero":
            return Span(whole.type, 0, max((_most(d) - 1 for d in inputs[0].shape.dims), default=0))
        if name == "dimensions_of":
            dims = inputs[0].shape.dims
            return Span(whole.type, min(map(_fewest, dims), default=0), max(map(_most, dims), default=0))
        if name == "get_tuple_elem":
            return self._member(inputs[0], ins.op.index, whole)  # type: ignore[attr-defined]
        if name == "pointwise":
            return self._pointwise(ins, 0, whole)
        if isinstance(ins.op, Pointwise):
            return _result(ins, [self.span(i) for i in inputs])
        return whole

    def _reduced(self, ins: Instruction, whole: Span) -> Span:
        """Return the span of a float reduction over axes that have elements."""
        x = ins.inputs[0].shape
        dims = [x.dims[axis] for axis in ins.op.axes] or x.dims  # type: ignore[attr-defined]
        if x.type.is_integral or any(_fewest(d) < 1 for d in dims):
            return whole
        return _REDUCED[ins.name](self.span(ins.inputs[0]), math.prod(map(_most, dims)))

    def _member(self, ins: Instruction, index: int, whole: Span) -> Span:
        if ins.name == "pointwise":
            return self._pointwise(ins, index, whole)
        if ins.name != "topk":
            return whole
        if index == 0 or len(ins.inputs) == 2:
            return self.span(ins.inputs[index])
        return _positions(ins.inputs[0], ins.op.axis, whole)  # type: ignore[attr-defined]

    def _pointwise(self, fused: Instruction, index: int, whole: Span) -> Span:
        """Return the span of result ``index`` of a module of pointwise operators."""
        if fused not in self._modules:
            module = fused.module_args[0]
            values = dict(zip(module.parameters(), map(self.span, fused.inputs), strict=True))
            for ins in module:
                if ins.literal is not None and ins.literal.array is not None:
                    values[ins] = _of_array(ins.literal.array, ins.shape.type)
                elif isinstance(ins.op, Pointwise) and all(i in values for i in ins.inputs):
                    values[ins] = _result(ins, [values[i] for i in ins.inputs])
            self._modules[fused] = [values.get(r) for r in module.results()]
        return self._modules[fused][index] or whole


def _positions(x: Instruction, axis: int, whole: Span) -> Span:
    return Span(whole.type, 0, max(_most(x.shape.dims[axis % x.shape.ndim]) - 1, 0))


def _fewest(dim: DynamicDimension) -> int:
    """Return the least length of a dimension."""
    return max(range_of(dim.min)[0] or 0, 0)


def _most(dim: DynamicDimension) -> int:
    """Return the largest length of a dimension."""
    most = range_of(dim.max)[1]
    return UNBOUNDED if most is None else max(most, 0)


def _of_array(array: np.ndarray, type: Type) -> Span:
    """Return the span of a constant's elements; the whole type for NaN, packed nibbles and host-only types."""
    if not array.size or type is Type.fp4x2_type or type.hosted:
        return Span.whole(type)
    few = compact(array)
    low, high = few.min().item(), few.max().item()
    return Span(type, low, high) if low <= high else Span.whole(type)


def _result(ins: Instruction, spans: Sequence[Span]) -> Span:
    """Return the span of a pointwise operator's result."""
    found = ins.op.scalar(_Arithmetic(), *spans)  # type: ignore[attr-defined]
    squared = ins.name == "mul" and ins.inputs[0] is ins.inputs[1] and found.type.is_floating
    return Span(found.type, 0.0, math.inf) if squared else found


def _union(spans: Sequence[Span]) -> Span:
    result = spans[0]
    for span in spans[1:]:
        result = result.union(span)
    return result


class _Arithmetic:
    """Handler of scalar operations (`ops.scalar`) on spans; an integer result that may wrap around spans its whole
    type."""

    def dtype(self, x: Span) -> Type:
        return x.type

    def const(self, value: float | int | bool, dtype: Type) -> Span:
        return _of_array(np.asarray(value).astype(dtype.numpy), dtype)

    def cast(self, x: Span, dtype: Type) -> Span:
        if not dtype.is_integral:
            return Span.whole(dtype)
        if x.type.is_integral:
            return _fitting(dtype, x.low, x.high)
        if math.isinf(x.low) or math.isinf(x.high):
            return Span.whole(dtype)
        return _fitting(dtype, min(math.trunc(x.low), 0), max(math.trunc(x.high), 0))  # NaN becomes 0

    cast_loosely = cast

    def where(self, condition: Span, a: Span, b: Span) -> Span:
        return a.union(b)

    def fma(self, a: Span, b: Span, c: Span) -> Span:
        return Span.whole(a.type)

    def __getattr__(self, name: str) -> Callable[..., Span]:
        infer, of_integers, of_floats = getattr(TypeScalar(), name), _INTEGER_ENDS.get(name), _FLOAT_SPANS.get(name)

        def call(*x: Span) -> Span:
            type = infer(*(s.type for s in x))
            if x[0].type.is_floating:
                return Span.whole(type) if of_floats is None else of_floats(*x)
            found = None if of_integers is None or not type.is_integral else of_integers(*x)
            return Span.whole(type) if found is None else _fitting(type, *found)

        return call


def _fitting(type: Type, low: float, high: float) -> Span:
    whole = Span.whole(type)
    return Span(type, low, high) if whole.low <= low and high <= whole.high else whole


Ends = tuple[float, float]


def _mul(a: Span, b: Span) -> Ends:
    corners = [x * y for x in a[1:] for y in b[1:]]
    return min(corners), max(corners)


def _mod(a: Span, b: Span) -> Ends | None:
    """Return the ends of ``a mod b``: the remainder has the divisor's sign, and is 0 for a division by 0."""
    if b.low < 0:
        return None
    most = max(b.high - 1, 0)
    return 0, min(a.high, most) if a.low >= 0 else most


def _fmod(a: Span, b: Span) -> Ends | None:
    """Return the ends of ``fmod(a, b)``: the remainder has the dividend's sign."""
    most = max(abs(b.low), abs(b.high), 1) - 1
    return max(-most, min(a.low, 0)), min(most, max(a.high, 0))


def _div(a: Span, b: Span) -> Ends | None:
    """Return the ends of ``a / b``, truncated toward 0; None unless ``b`` is a positive constant."""
    if b.low != b.high or b.low <= 0:
        return None
    low, high = (abs(end) // b.low * (1 if end > 0 else -1) for end in a[1:])
    return low, high


_INTEGER_ENDS: dict[str, Any] = {
    "add": lambda a, b: (a.low + b.low, a.high + b.high),
    "sub": lambda a, b: (a.low - b.high, a.high - b.low),
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "fmod": _fmod,
    "min": lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
    "neg": lambda a: (-a.high, -a.low),
}
"""Ends of the results of integer operations; None if they are unknown."""


def _rounded(type: Type, low: float, high: float, roundings: int = 1) -> Span:
    """Widen exactly computed ends by the error of ``roundings`` successive roundings and one rounding to the type."""
    slack = 4 * (_numbers(type).eps + roundings * _numbers(type.compute).eps)  # 4 times the error bound, for safety
    low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
    size = max(abs(low), abs(high))
    below, above = (abs(low), abs(high)) if low >= 0 or high <= 0 else (size, size)
    if low >= 0:
        low -= min(slack, 1.0) * below if low < math.inf else 0.0
    else:
        low = low - slack * below if slack < 1 else -math.inf
    if high <= 0:
        high += min(slack, 1.0) * above if high > -math.inf else 0.0
    else:
        high = high + slack * above if slack < 1 else math.inf
    largest = float(_numbers(type).max)
    return Span(type, -math.inf if low < -largest else low, math.inf if high > largest else high)


def _numbers(type: Type) -> Any:
    return finfo(type.numpy)


def _mean(x: Span, count: int) -> Span:
    """Return the span of a mean of ``count`` elements; the sum may overflow to infinity although the mean does not."""
    if max(abs(x.low), abs(x.high)) * count <= float(_numbers(x.type.compute).max):
        return _rounded(x.type, x.low, x.high, count)
    return Span(x.type, 0.0 if x.low >= 0 else -math.inf, 0.0 if x.high <= 0 else math.inf)


def _least(a: Span, b: Span) -> Span:
    """Return the span of ``min(a, b)``; only a constant operand bounds it from above, since the other may be NaN."""
    low, high = min(a.low, b.low), max(a.high, b.high)
    return Span(a.type, low, min((s.high for s in (a, b) if s.low == s.high), default=high))


def _greatest(a: Span, b: Span) -> Span:
    """Return the span of ``max(a, b)``; for NaN see `_least`."""
    low, high = min(a.low, b.low), max(a.high, b.high)
    return Span(a.type, max((s.low for s in (a, b) if s.low == s.high), default=low), high)


def _absolute(x: Span) -> Span:
    return Span(x.type, max(x.low, -x.high, 0.0), max(abs(x.low), abs(x.high)))


def _root(x: Span) -> Span:
    return _rounded(x.type, math.sqrt(x.low), math.sqrt(x.high)) if x.low >= 0 else Span(x.type, 0.0, math.inf)


_FLOAT_SPANS: dict[str, Any] = {
    "abs": _absolute,
    "add": lambda a, b: _rounded(a.type, a.low + b.low, a.high + b.high),
    "exp": lambda x: Span(x.type, 0.0, math.inf),
    "max": _greatest,
    "min": _least,
    "sigmoid": lambda x: _rounded(x.type, 0.0, 1.0),
    "sqrt": _root,
}
"""Spans of the results of float operations; other operations span their whole type."""

_REDUCED: dict[str, Any] = {
    "reduce_max": lambda x, count: x,
    "reduce_min": lambda x, count: x,
    "reduce_mean": _mean,
    "reduce_sum": lambda x, count: Span(x.type, x.low if x.low >= 0 else -math.inf, math.inf),
}
"""Spans of float reductions over ``count`` elements."""
