"""Elementary float64 functions without a C library, under the names of their float32 versions.

Errors are within 2 units in the last place, except for subnormal results. NaN gives NaN. Lanes are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...lang.arith import emit_integer_power
from ...lang.builder import VectorBuilder
from ...lang.vecmath import SINGLE
from ...lang.vector import FLOATS, INTEGERS, KernelFunction, elementwise
from . import double_angles, double_erf, double_exponentials, periodic

Emit = Callable[..., ir.Value]
_OF_ONE: dict[str, Emit] = {
    name: getattr(part, name)
    for part in (double_angles, double_erf, double_exponentials)
    for name in part.__all__
    if name not in ("exponential", "exponential_parts", "raised", "pow")
}
_TURNS = {name: getattr(periodic, name) for name in periodic.__all__}


def _by_lane(emit: Emit, b: VectorBuilder, *operands: ir.Value) -> ir.Value:
    """Apply a scalar function, without fast math, to each lane."""
    strict, lanes = b.strict(), b.lanes(operands[0])
    if not lanes:
        return emit(strict, *operands)
    result = b.poison(operands[0].type)
    for lane in range(lanes):
        made = emit(strict, *(b.extract(x, lane) for x in operands))
        result = b.ir.insert_element(result, made, ir.Constant(ir.IntType(32), lane))
    return result


def _kept(emit: Emit) -> Emit:
    """Extend a function of a number that is not NaN to NaN."""

    def wide(b: VectorBuilder, x: ir.Value) -> ir.Value:
        return b.select(b.is_nan(x), x, emit(b, x))

    return wide


def _function(name: str) -> KernelFunction:
    single, double = _TURNS.get(name, SINGLE[name]), _kept(_OF_ONE[name])

    def emit(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
        return single(b, x) if dtype == "float32" else _by_lane(double, b, x)

    return elementwise(name, emit, 1, FLOATS)


def _pow(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    if dtype == "float64":
        return _by_lane(double_exponentials.pow, b, x, y)
    return SINGLE["pow"](b, x, y) if dtype == "float32" else emit_integer_power(b, dtype, x, y)


pow = elementwise("pow", _pow, 2, (*FLOATS, *INTEGERS))
for _name in _OF_ONE:
    globals()[_name] = _function(_name)
