"""Store float32 as two bfloat16 parts, for products in parts.

store_parts(high, low, i, v)
    each float32 of v rounded to bfloat16 goes to high[i], ..., the rounded remainder to low[i], ...
store_parts_tail(high, low, i, v, count)
    the first count lanes only

The parts have the format of `part_form`.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.memory import masked_store, store_vector
from ...lang.vector import Definition, KernelFunction, Values, Vec, make_intrinsic, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from ..part_form import DROPPED_BITS, LARGEST, LOW_BITS, SIGN_BIT, TINY, bits_of
from .bfloat16 import rounded

_I32 = ir.IntType(32)


def _split(b: VectorBuilder, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return both parts of numbers that round to finite bfloat16."""
    high = rounded(b, value)
    wide = b.ir.shl(b.ir.zext(high, b.like(value, _I32)), b.constant(b.like(value, _I32), 16))
    return high, rounded(b, b.ir.fsub(value, b.ir.bitcast(wide, value.type)))


def _split_any(b: VectorBuilder, value: ir.Value, bits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return both parts of any numbers."""
    bounded = value
    for relation, limit in ((">", LARGEST), ("<", -LARGEST)):
        beyond = b.ir.fcmp_ordered(relation, value, b.constant(value.type, limit))
        bounded = b.ir.select(beyond, b.constant(value.type, limit), bounded)
    high = rounded(b, bounded)

    def number(x: int) -> ir.Constant:
        return b.constant(bits.type, x)

    wide = b.ir.shl(b.ir.zext(high, bits.type), number(16))
    low = rounded(b, b.ir.fsub(value, b.ir.bitcast(wide, value.type)))
    tiny = b.ir.icmp_unsigned("<", b.ir.and_(bits, number(0x7FFFFFFF)), number(bits_of(TINY)))
    others = b.ir.and_(b.ir.lshr(bits, number(DROPPED_BITS)), number(LOW_BITS))
    lower = b.ir.or_(b.ir.and_(bits, number(SIGN_BIT)), others)
    upper, lower = (b.ir.trunc(x, high.type) for x in (b.ir.lshr(bits, number(16)), lower))
    return b.ir.select(tiny, upper, high), b.ir.select(tiny, lower, low)


def _store_parts(name: str, tail: bool) -> KernelFunction:
    def define(high: types.Type, low: types.Type, i: types.Type, v: types.Type, *count: types.Type) -> Definition:
        if not all(pointer_dtype(name, p) == "bfloat16" for p in (high, low)):
            raise TypingError(f"{name}: expected pointers to bfloat16, got {high} and {low}")
        if not isinstance(v, Vec) or v.dtype != "float32" or not v.lanes:
            raise TypingError(f"{name}: expected a vector of float32, got {v}")

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            b = VectorBuilder(builder)
            first, second, start, value, *left = values
            integers = b.like(value, _I32)
            bits = builder.bitcast(value, integers)
            size = builder.shl(bits, b.constant(integers, 1))  # without the sign
            least, most = (2 * bits_of(limit) for limit in (TINY, LARGEST))
            below = builder.icmp_unsigned(
                "<", builder.sub(size, b.constant(integers, 1)), b.constant(integers, least - 1)
            )
            above = builder.icmp_unsigned(">", size, b.constant(integers, most))
            found = builder.bitcast(builder.or_(below, above), ir.IntType(v.lanes))
            special = builder.icmp_unsigned("!=", found, ir.Constant(found.type, 0))

            def store(parts: tuple[ir.Value, ir.Value]) -> None:
                for p, part in zip((first, second), parts):
                    if left:
                        masked_store(b, builder.gep(p, [start]), part, left[0], "bfloat16")
                    else:
                        store_vector(b, builder.gep(p, [start]), part, "bfloat16")

            with builder.if_else(special, likely=False) as (rare, usual):
                with rare:
                    store(_split_any(b, value, bits))
                with usual:
                    store(_split(b, value))

        return types.void(high, low, types.int64, v, *[types.int64] * len(count)), emit

    return make_intrinsic(name, define, 5 if tail else 4)


store_parts = _store_parts("store_parts", tail=False)
store_parts_tail = _store_parts("store_parts_tail", tail=True)
