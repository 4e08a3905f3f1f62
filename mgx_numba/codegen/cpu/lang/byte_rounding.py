"""Rounding to 8 bits, as a quantisation ends.

round_int8(v, ZERO), round_uint8(v, ZERO)
    a vector of float32 rounded to the nearest integers, ties to even, plus ZERO (an integer literal of the result's
    range), saturated; of NaN 0. One conversion instead of a rounding and a conversion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.builder import VectorBuilder, element_type
from ...lang.memory import Definition
from ...lang.vector import Vec, constant_int, make_intrinsic

__all__ = ["round_int8", "round_uint8"]  # the words of the language


def _round(dtype: str) -> Any:
    name, ends = f"round_{dtype}", np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)

    def define(v: types.Type, zero: types.Type) -> Definition:
        if not isinstance(v, Vec) or v.dtype != "float32":
            raise TypingError(f"{name}: expected a vector of float32, got {v}")
        point = constant_int(name, "ZERO", zero, low=low, high=high)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            b, value = VectorBuilder(builder).strict(), values[0]
            near = b.first_greater(value, float(low - point))  # the limit where it is NaN
            near = b.select(b.fcmp("<", near, float(high - point)), near, float(high - point))
            wide = b.like(value, ir.IntType(32))
            whole = b.intrinsic("lrint", [near], wide, overloads=[wide, value.type])
            if point:
                whole = b.iadd(whole, point)
            if low:
                whole = b.select(b.is_nan(value), 0, whole)
            return b.ir.trunc(whole, b.like(value, element_type(dtype)))

        return Vec(dtype, v.lanes)(v, zero), lower

    return make_intrinsic(name, define, 2, literal=True)


round_int8, round_uint8 = _round("int8"), _round("uint8")
