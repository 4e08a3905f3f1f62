"""Intrinsics that make values: constants, casts, broadcasts, lane numbers and masks."""

from __future__ import annotations

from llvmlite import ir

from ..toolchain.numba_core import TypingError, types
from .builder import VectorBuilder, element_type
from .convert import convert
from .vector import (
    DTYPES,
    INTEGERS,
    STORAGE,
    Definition,
    KernelFunction,
    Values,
    Vec,
    constant_int,
    describe,
    kernel_function,
    literal_function,
    make_intrinsic,
    scalar_type,
    value_type,
)

INF = float("inf")
NAN = float("nan")

_I64 = ir.IntType(64)
# Of a value; bool has no pattern of bits that casts keep.
_BITS = {"bool": 0, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
_BITS |= {name: int("".join(filter(str.isdigit, name))) for name in INTEGERS}
_BITS |= {name: 8 for name in STORAGE if name.startswith("float8")}


def _const(dtype: str) -> KernelFunction:
    name = f"const_{dtype}"

    def define(value: types.Type, lanes: types.Type) -> Definition:
        count = constant_int(name, "LANES", lanes)
        source, _ = describe(name, value)

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder)
            scalar = convert(b, args[0], source, dtype)
            return b.splat(scalar, count) if count else scalar

        return value_type(dtype, count)(types.unliteral(value), lanes), emit

    return make_intrinsic(name, define, literal=True)


def _cast(dtype: str) -> KernelFunction:
    name = f"cast_{dtype}"

    def define(x: types.Type) -> Definition:
        source, count = describe(name, x)

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            return convert(VectorBuilder(builder), args[0], source, dtype)

        return value_type(dtype, count)(value_type(source, count)), emit

    return make_intrinsic(name, define)


def _bits(dtype: str) -> KernelFunction:
    name = f"bits_{dtype}"

    def define(x: types.Type) -> Definition:
        source, count = describe(name, x)
        if not _BITS[source] or _BITS[source] != _BITS[dtype]:
            raise TypingError(f"{name}: {source} and {dtype} have different widths")

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder)
            return builder.bitcast(args[0], b.like(args[0], element_type(dtype)))

        return value_type(dtype, count)(value_type(source, count)), emit

    return make_intrinsic(name, define)


def _iota(dtype: str) -> KernelFunction:
    name = f"iota_{dtype}"

    def define(lanes: types.Type) -> Definition:
        count = constant_int(name, "LANES", lanes)

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            return VectorBuilder(builder).iota(element_type(dtype), count)

        return value_type(dtype, count)(lanes), emit

    return make_intrinsic(name, define, literal=True)


@literal_function
def splat(x: types.Type, lanes: types.Type) -> Definition:
    count = constant_int("splat", "LANES", lanes, low=1)
    dtype, own = describe("splat", x)
    if own not in (0, count):
        raise TypingError(f"splat: expected a scalar or {count} lanes, got {x}")

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return args[0] if own else VectorBuilder(builder).splat(args[0], count)

    return Vec(dtype, count)(value_type(dtype, own), lanes), emit


@kernel_function
def extract(v: types.Type, k: types.Type) -> Definition:
    if not isinstance(v, Vec) or not v.lanes:
        raise TypingError(f"extract: expected a vector, got {v}")

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return VectorBuilder(builder).extract(args[0], args[1])

    return scalar_type(v.dtype)(v, types.int64), emit


@literal_function
def lane_mask(count: types.Type, lanes: types.Type) -> Definition:
    width = constant_int("lane_mask", "LANES", lanes, low=1)

    def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
        return tail_mask(VectorBuilder(builder), args[0], width)

    return Vec("bool", width)(types.int64, lanes), emit


def tail_mask(b: VectorBuilder, count: ir.Value, lanes: int) -> ir.Value:
    """i1 vector of `lane < count` for an i64 count; a count below 0 is 0."""
    # 32-bit compares suit every instruction set; LANES is far below 2**31, so a clamped count loses nothing.
    i32 = ir.IntType(32)
    clamped = b.intrinsic("smin", [b.intrinsic("smax", [count, 0]), lanes])
    limit = b.splat(b.ir.trunc(clamped, i32), lanes)
    return b.icmp("<", b.iota(i32, lanes), limit)


for _dtype in DTYPES:
    globals()[f"const_{_dtype}"] = _const(_dtype)
    globals()[f"cast_{_dtype}"] = _cast(_dtype)
    if _dtype != "bool":
        globals()[f"bits_{_dtype}"] = _bits(_dtype)
for _dtype in INTEGERS:
    globals()[f"iota_{_dtype}"] = _iota(_dtype)
