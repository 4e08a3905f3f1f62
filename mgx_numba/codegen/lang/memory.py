"""Intrinsics that read and write memory: typed pointers, scalars, contiguous vectors and their tails.

Indices, strides and counts are int64 numbers of elements. Pointers are loaded, offset and passed as typed
pointers and never made from integers. Vectors may lie at any address that is aligned for one element.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..toolchain.numba_core import TypingError, cgutils, types
from .builder import VectorBuilder, element_type
from .convert import convert
from .target import has, itemsize
from .values import tail_mask
from .vector import (
    DTYPES,
    Definition,
    KernelFunction,
    Values,
    Vec,
    constant_int,
    describe,
    kernel_function,
    make_intrinsic,
    pointer_dtype,
    pointer_type,
    scalar_type,
)

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_INT = types.int64
_ARGS = types.CPointer(types.int64)
_STACK_LIMIT = 1 << 16
"""Bytes of one array on the stack, of which kernels have a few: threads of macOS have 512 KiB, of Linux 8 MiB."""


# Elements in memory


def memory_element(dtype: str) -> ir.Type:
    """LLVM type of an element in memory: a byte for bool."""
    return _I8 if dtype == "bool" else element_type(dtype)


def alignment(dtype: str) -> int:
    """Bytes that every address of an element is a multiple of."""
    return itemsize(dtype)


def from_memory(b: VectorBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """A loaded scalar or vector as registers hold it: bool as i1."""
    return b.icmp("!=", value, 0) if dtype == "bool" else value


def to_memory(b: VectorBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """A scalar or vector as it is stored: bool as bytes of 0 and 1."""
    return b.ir.zext(value, b.like(value, _I8)) if dtype == "bool" else value


def _load_vector(b: VectorBuilder, address: ir.Value, dtype: str, lanes: int) -> ir.Value:
    type_ = ir.VectorType(memory_element(dtype), lanes)
    return b.ir.load(b.ir.bitcast(address, type_.as_pointer()), align=alignment(dtype))


def store_vector(b: VectorBuilder, address: ir.Value, value: ir.Value, dtype: str) -> None:
    b.ir.store(value, b.ir.bitcast(address, value.type.as_pointer()), align=alignment(dtype))


def _has_masked(dtype: str) -> bool:
    """Whether contiguous masked loads and stores of a dtype are instructions, not a branch a lane."""
    size = itemsize(dtype)
    if has("avx512vl"):
        return size >= 4 or has("avx512bw")
    return size >= 4 and has("avx")


def masked_load(b: VectorBuilder, address: ir.Value, count: ir.Value, fill: ir.Value, dtype: str) -> ir.Value:
    """Vector from memory with `fill` in the lanes from `count` on; values are in their memory form."""
    lanes = fill.type.count
    if _has_masked(dtype):
        place = b.ir.bitcast(address, fill.type.as_pointer())
        callee = b.function(
            f"llvm.masked.load.{b.mangled(fill.type)}.p0",
            fill.type,
            [place.type, _I32, ir.VectorType(_I1, lanes), fill.type],
        )
        return b.ir.call(callee, [place, ir.Constant(_I32, alignment(dtype)), tail_mask(b, count, lanes), fill])
    scratch = b.spill(fill)
    _copy(b, scratch, address, count, dtype)
    return b.ir.load(b.ir.bitcast(scratch, fill.type.as_pointer()), align=64)


def masked_store(b: VectorBuilder, address: ir.Value, value: ir.Value, count: ir.Value, dtype: str) -> None:
    lanes = value.type.count
    if _has_masked(dtype):
        place = b.ir.bitcast(address, value.type.as_pointer())
        callee = b.function(
            f"llvm.masked.store.{b.mangled(value.type)}.p0",
            ir.VoidType(),
            [value.type, place.type, _I32, ir.VectorType(_I1, lanes)],
        )
        b.ir.call(callee, [value, place, ir.Constant(_I32, alignment(dtype)), tail_mask(b, count, lanes)])
        return
    _copy(b, address, b.spill(value), count, dtype)


def _copy(b: VectorBuilder, target: ir.Value, source: ir.Value, count: ir.Value, dtype: str) -> None:
    """Copy `count` elements between places that do not overlap; none if `count` is negative."""
    size = b.imul(b.intrinsic("smax", [count, 0]), itemsize(dtype))
    cgutils.raw_memcpy(b.ir, target, source, size, 1)


def fill_vector(b: VectorBuilder, value: ir.Value, source: str, dtype: str, lanes: int) -> ir.Value:
    """A scalar fill as a vector in memory form."""
    return b.splat(to_memory(b, convert(b, value, source, dtype), dtype), lanes)


# Definitions. Each `define` takes the operands' Numba types and gives the signature and the lowering.


def _pointer(name: str, dtype: str) -> KernelFunction:
    result = pointer_type(dtype)

    def define(args: types.Type, slot: types.Type) -> Definition:
        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            element = memory_element(dtype).as_pointer()
            place = builder.bitcast(builder.gep(values[0], [values[1]]), element.as_pointer())
            loaded = builder.load(place)
            if name == "pointer":  # a kernel never writes its argument block
                loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
            return loaded

        return result(_ARGS, _INT), emit

    return make_intrinsic(f"{name}_{dtype}", define)


def _local(dtype: str) -> KernelFunction:
    name = f"local_{dtype}"
    result = pointer_type(dtype)

    def define(count: types.Type) -> Definition:
        size = constant_int(name, "COUNT", count, low=1, high=_STACK_LIMIT // itemsize(dtype))

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            element = memory_element(dtype)
            place = VectorBuilder(builder).reserve(ir.ArrayType(element, size))
            return builder.bitcast(place, element.as_pointer())

        return result(count), emit

    return make_intrinsic(name, define, literal=True)


@kernel_function
def offset(p: types.Type, i: types.Type) -> Definition:
    pointer_dtype("offset", p)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return builder.gep(values[0], [values[1]])

    return p(p, _INT), emit


@kernel_function
def load_scalar(p: types.Type, i: types.Type) -> Definition:
    dtype = pointer_dtype("load_scalar", p)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        return from_memory(b, builder.load(builder.gep(values[0], [values[1]])), dtype)

    return scalar_type(dtype)(p, _INT), emit


@kernel_function
def store_scalar(p: types.Type, i: types.Type, x: types.Type) -> Definition:
    dtype = pointer_dtype("store_scalar", p)
    source = scalar_dtype("store_scalar", x)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        b = VectorBuilder(builder)
        value = to_memory(b, convert(b, values[2], source, dtype), dtype)
        builder.store(value, builder.gep(values[0], [values[1]]))

    return types.void(p, _INT, scalar_type(source)), emit


def scalar_dtype(name: str, x: types.Type) -> str:
    """Dtype of an operand of the intrinsic `name` that must be a scalar.

    Raises:
        TypingError: it is a vector or no number.
    """
    dtype, lanes = describe(name, x)
    if lanes:
        raise TypingError(f"{name}: expected a scalar, got {x}")
    return dtype


def loader(name: str, arity: int, emit: Callable[..., ir.Value]) -> KernelFunction:
    """Intrinsic name(p, int64..., LANES); `emit(b, dtype, lanes, p, ...)` gives values in memory form."""

    def define(p: types.Type, *rest: types.Type) -> Definition:
        dtype = pointer_dtype(name, p)
        lanes = constant_int(name, "LANES", rest[-1], low=1)

        def emit_call(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b = VectorBuilder(builder)
            return from_memory(b, emit(b, dtype, lanes, *values[:-1]), dtype)

        return Vec(dtype, lanes)(p, *[_INT] * (len(rest) - 1), rest[-1]), emit_call

    return make_intrinsic(name, define, arity, literal=True)


def tail_loader(name: str, arity: int, emit: Callable[..., ir.Value]) -> KernelFunction:
    """Intrinsic name(p, int64..., count, fill, LANES), `emit(b, dtype, lanes, fill, p, ..., count)`."""

    def define(p: types.Type, *rest: types.Type) -> Definition:
        dtype = pointer_dtype(name, p)
        lanes = constant_int(name, "LANES", rest[-1], low=1)
        source = scalar_dtype(name, rest[-2])

        def emit_call(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b = VectorBuilder(builder)
            fill = fill_vector(b, values[-2], source, dtype, lanes)
            return from_memory(b, emit(b, dtype, lanes, fill, *values[:-2]), dtype)

        return Vec(dtype, lanes)(p, *[_INT] * (len(rest) - 2), scalar_type(source), rest[-1]), emit_call

    return make_intrinsic(name, define, arity, literal=True)


def storer(name: str, arity: int, value_at: int, emit: Callable[..., None]) -> KernelFunction:
    """Intrinsic over a pointer, int64 operands and, at `value_at`, a vector of the pointer's dtype."""

    def define(p: types.Type, *rest: types.Type) -> Definition:
        dtype = pointer_dtype(name, p)
        v = rest[value_at - 1]
        if not isinstance(v, Vec) or v.dtype != dtype or not v.lanes:
            raise TypingError(f"{name}: expected a {dtype} vector for a pointer to {dtype}, got {v}")
        given: list[types.Type] = [_INT] * len(rest)
        given[value_at - 1] = v

        def emit_call(builder: ir.IRBuilder, values: Values) -> None:
            b = VectorBuilder(builder)
            values = list(values)
            values[value_at] = to_memory(b, values[value_at], dtype)
            emit(b, dtype, *values)

        return types.void(p, *given), emit_call

    return make_intrinsic(name, define, arity)


def _load(b: VectorBuilder, dtype: str, lanes: int, p: ir.Value, i: ir.Value) -> ir.Value:
    return _load_vector(b, b.ir.gep(p, [i]), dtype, lanes)


def _load_splat(b: VectorBuilder, dtype: str, lanes: int, p: ir.Value, i: ir.Value) -> ir.Value:
    return b.splat(b.ir.load(b.ir.gep(p, [i])), lanes)


def _load_tail(
    b: VectorBuilder, dtype: str, lanes: int, fill: ir.Value, p: ir.Value, i: ir.Value, count: ir.Value
) -> ir.Value:
    return masked_load(b, b.ir.gep(p, [i]), count, fill, dtype)


def _store(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, v: ir.Value) -> None:
    store_vector(b, b.ir.gep(p, [i]), v, dtype)


def _store_tail(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, v: ir.Value, count: ir.Value) -> None:
    masked_store(b, b.ir.gep(p, [i]), v, count, dtype)


load = loader("load", 3, _load)
load_splat = loader("load_splat", 3, _load_splat)
load_tail = tail_loader("load_tail", 5, _load_tail)
store = storer("store", 3, 2, _store)
store_tail = storer("store_tail", 4, 2, _store_tail)

for _dtype in DTYPES:
    for _name in ("pointer", "local_pointer"):
        globals()[f"{_name}_{_dtype}"] = _pointer(_name, _dtype)
    globals()[f"local_{_dtype}"] = _local(_dtype)
