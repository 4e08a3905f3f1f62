"""Intrinsics that make values: constants, casts, broadcasts, lane numbers and masks."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..toolchain.numba_core import TypingError, types
from .builder import VectorBuilder, element_type
from .convert import convert
from .vector import DTYPES, INTEGERS, STORAGE, Vec, constant_int, describe, make_intrinsic, scalar_type, value_type

__all__ = ["INF", "NAN", "extract", "lane_mask", "splat"]

INF = float("inf")
NAN = float("nan")

_I64 = ir.IntType(64)
# Of a value; bool has no pattern of bits that casts keep.
_BITS = {"bool": 0, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
_BITS |= {name: int("".join(filter(str.isdigit, name))) for name in INTEGERS}
_BITS |= {name: 8 for name in STORAGE if name.startswith("float8")}


def _const(dtype: str) -> Any:
    name = f"const_{dtype}"

    def define(value: types.Type, lanes: types.Type) -> Any:
        count = constant_int(name, "LANES", lanes)
        source, _ = describe(name, value)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            b = VectorBuilder(builder)
            scalar = convert(b, args[0], source, dtype)
            return b.splat(scalar, count) if count else scalar

        return value_type(dtype, count)(types.unliteral(value), lanes), lower

    return make_intrinsic(name, define, 2, literal=True)


def _cast(dtype: str) -> Any:
    name = f"cast_{dtype}"

    def define(x: types.Type) -> Any:
        source, count = describe(name, x)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return convert(VectorBuilder(builder), args[0], source, dtype)

        return value_type(dtype, count)(value_type(source, count)), lower

    return make_intrinsic(name, define, 1)


def _bits(dtype: str) -> Any:
    name = f"bits_{dtype}"

    def define(x: types.Type) -> Any:
        source, count = describe(name, x)
        if not _BITS[source] or _BITS[source] != _BITS[dtype]:
            raise TypingError(f"{name}: {source} and {dtype} have different widths")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            b = VectorBuilder(builder)
            return builder.bitcast(args[0], b.like(args[0], element_type(dtype)))

        return value_type(dtype, count)(value_type(source, count)), lower

    return make_intrinsic(name, define, 1)


def _iota(dtype: str) -> Any:
    name = f"iota_{dtype}"

    def define(lanes: types.Type) -> Any:
        count = constant_int(name, "LANES", lanes)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return VectorBuilder(builder).iota(element_type(dtype), count)

        return value_type(dtype, count)(lanes), lower

    return make_intrinsic(name, define, 1, literal=True)


def _define_splat(x: types.Type, lanes: types.Type) -> Any:
    count = constant_int("splat", "LANES", lanes, low=1)
    dtype, own = describe("splat", x)
    if own not in (0, count):
        raise TypingError(f"splat: expected a scalar or {count} lanes, got {x}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return args[0] if own else VectorBuilder(builder).splat(args[0], count)

    return Vec(dtype, count)(value_type(dtype, own), lanes), lower


def _define_extract(v: types.Type, k: types.Type) -> Any:
    if not isinstance(v, Vec) or not v.lanes:
        raise TypingError(f"extract: expected a vector, got {v}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return VectorBuilder(builder).extract(args[0], args[1])

    return scalar_type(v.dtype)(v, types.int64), lower


def _define_lane_mask(count: types.Type, lanes: types.Type) -> Any:
    width = constant_int("lane_mask", "LANES", lanes, low=1)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return tail_mask(VectorBuilder(builder), args[0], width)

    return Vec("bool", width)(types.int64, lanes), lower


def tail_mask(b: VectorBuilder, count: ir.Value, lanes: int) -> ir.Value:
    """i1 vector of `lane < count` for an i64 count; a count below 0 is 0."""
    # 32-bit compares suit every instruction set; LANES is far below 2**31, so a clamped count loses nothing.
    i32 = ir.IntType(32)
    clamped = b.intrinsic("smin", [b.intrinsic("smax", [count, 0]), lanes])
    limit = b.splat(b.ir.trunc(clamped, i32), lanes)
    return b.icmp("<", b.iota(i32, lanes), limit)


splat = make_intrinsic("splat", _define_splat, 2, literal=True)
extract = make_intrinsic("extract", _define_extract, 2)
lane_mask = make_intrinsic("lane_mask", _define_lane_mask, 2, literal=True)

for _dtype in DTYPES:
    globals()[f"const_{_dtype}"] = _const(_dtype)
    globals()[f"cast_{_dtype}"] = _cast(_dtype)
    if _dtype != "bool":
        globals()[f"bits_{_dtype}"] = _bits(_dtype)
for _dtype in INTEGERS:
    globals()[f"iota_{_dtype}"] = _iota(_dtype)
__all__ += [
    f"{_kind}_{_dtype}"
    for _kind in ("const", "cast", "bits")
    for _dtype in DTYPES
    if (_kind, _dtype) != ("bits", "bool")
]
__all__ += [f"iota_{_dtype}" for _dtype in INTEGERS]
