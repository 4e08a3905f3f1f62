"""Rounding to values that float8 can represent, without the codes, and related functions.

nearest_<float8>(v, s, LIMITS)
    v / s of vectors of float32 cast to a float8 dtype and back, times s, which has the same power of two in all lanes.
    LIMITS, a literal: 1: no number exceeds the dtype's largest number times s; 2: also none is negative; 0: neither
    holds, and infinities may occur.
nearest_<float8>_fast(v, s, LIMITS)
    the same with zeros of any sign.
scaled_silu_coarse(x, y)
    y silu(x) of vectors of float32, within 2**-11: for fast math where the result is only rounded to float8, whose
    steps are at least 2**-4 of a number. Where exp(-x) overflows it is zero, or NaN if x y is infinite.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.convert import nearest
from ...lang.math32 import scaled_silu_coarse as written_silu
from ...lang.vector import Definition, KernelFunction, Values, Vec, constant_int, elementwise, make_intrinsic
from ...toolchain.numba_core import TypingError, types


def _nearest(dtype: str, fast: bool = False) -> KernelFunction:
    name = f"nearest_{dtype}{'_fast' * fast}"

    def define(v: types.Type, s: types.Type, limits: types.Type) -> Definition:
        if not isinstance(v, Vec) or v.dtype != "float32" or s != v:
            raise TypingError(f"{name}: expected two vectors of float32, got {v} and {s}")
        known = constant_int(name, "LIMITS", limits, low=0, high=2)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return nearest(VectorBuilder(builder, fast), values[0], values[1], dtype, known)

        return v(v, s, limits), emit

    return make_intrinsic(name, define, literal=True)


nearest_float8_e4m3fn, nearest_float8_e4m3fnuz = _nearest("float8_e4m3fn"), _nearest("float8_e4m3fnuz")
nearest_float8_e5m2, nearest_float8_e5m2fnuz = _nearest("float8_e5m2"), _nearest("float8_e5m2fnuz")
nearest_float8_e4m3fn_fast = _nearest("float8_e4m3fn", fast=True)
nearest_float8_e4m3fnuz_fast = _nearest("float8_e4m3fnuz", fast=True)
nearest_float8_e5m2_fast = _nearest("float8_e5m2", fast=True)
nearest_float8_e5m2fnuz_fast = _nearest("float8_e5m2fnuz", fast=True)
scaled_silu_coarse = elementwise("scaled_silu_coarse", lambda b, dtype, *x: written_silu(b, *x), 2, ("float32",))
