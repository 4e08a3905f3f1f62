"""Intrinsics that read and write vectors of strided or indexed elements."""

from __future__ import annotations

from typing import Protocol

from llvmlite import ir

from ....dataclass import dataclass
from ...lang.builder import VectorBuilder
from ...lang.convert import convert
from ...lang.memory import (
    alignment,
    fill_vector,
    from_memory,
    loader,
    memory_element,
    scalar_dtype,
    storer,
    tail_loader,
    to_memory,
)
from ...lang.registers import by_registers
from ...lang.target import has, itemsize
from ...lang.values import tail_mask
from ...lang.vector import (
    Definition,
    KernelFunction,
    Values,
    Vec,
    kernel_function,
    make_intrinsic,
    pointer_dtype,
    scalar_type,
    value_type,
)
from ...toolchain.numba_core import TypingError, types

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_INT = types.int64
_OCTETS, _PART = 32, 16
"""Bytes of an AVX2 register, and of its halves."""


class _Index(Protocol):
    """The offsets of a vector's lanes, in elements from a base."""

    def lane(self, b: VectorBuilder, k: ir.Value) -> ir.Value:
        """Return the i64 index of lane `k` (i64)."""

    def vector(self, b: VectorBuilder) -> ir.Value:
        """Return the i64 vector of all indices."""


@dataclass(frozen=True)
class _Strided:
    start: ir.Value
    stride: ir.Value
    lanes: int

    def lane(self, b: VectorBuilder, k: ir.Value) -> ir.Value:
        return b.iadd(self.start, b.imul(self.stride, k))

    def vector(self, b: VectorBuilder) -> ir.Value:
        steps = b.imul(b.iota(_I64, self.lanes), b.splat(self.stride, self.lanes))
        return b.iadd(steps, b.splat(self.start, self.lanes))


@dataclass(frozen=True)
class _Indexed:
    indices: ir.Value

    def lane(self, b: VectorBuilder, k: ir.Value) -> ir.Value:
        return b.extract(self.indices, k)

    def vector(self, b: VectorBuilder) -> ir.Value:
        return self.indices


def _has_gather(dtype: str) -> bool:
    return has("avx512vl") and itemsize(dtype) >= 4


def _gather_instruction(
    b: VectorBuilder, base: ir.Value, index: _Index, mask: ir.Value, fill: ir.Value, dtype: str
) -> ir.Value:
    indices = index.vector(b)
    lanes = indices.type.count
    pointers = b.ir.gep(base, [indices], source_etype=base.type.pointee)
    pointers.type = ir.VectorType(base.type, lanes)
    callee = b.function(
        f"llvm.masked.gather.{b.mangled(fill.type)}.v{lanes}p0",
        fill.type,
        [pointers.type, _I32, mask.type, fill.type],
    )
    return b.ir.call(callee, [pointers, ir.Constant(_I32, alignment(dtype)), mask, fill])


def _read(b: VectorBuilder, base: ir.Value, index: _Index, lanes: int, dtype: str) -> ir.Value:
    """Return the vector of base[index], in memory form."""
    type_ = ir.VectorType(memory_element(dtype), lanes)
    result = b.poison(type_)
    if _has_gather(dtype):
        return _gather_instruction(b, base, index, b.constant(ir.VectorType(_I1, lanes), 1), result, dtype)
    for k in range(lanes):
        value = b.ir.load(b.ir.gep(base, [index.lane(b, ir.Constant(_I64, k))]), align=alignment(dtype))
        result = b.ir.insert_element(result, value, ir.Constant(_I32, k))
    return result


def _read_tail(
    b: VectorBuilder, base: ir.Value, index: _Index, count: ir.Value, fill: ir.Value, dtype: str
) -> ir.Value:
    """Return `_read` for the lanes below `count`, and `fill` in the remaining lanes."""
    if _has_gather(dtype):
        return _gather_instruction(b, base, index, tail_mask(b, count, fill.type.count), fill, dtype)
    scratch = b.spill(fill)

    def body(k: ir.Value) -> None:
        value = b.ir.load(b.ir.gep(base, [index.lane(b, k)]), align=alignment(dtype))
        b.ir.store(value, b.ir.gep(scratch, [k]))

    b.for_lanes(count, body)
    return b.ir.load(b.ir.bitcast(scratch, fill.type.as_pointer()), align=64)


def _write(b: VectorBuilder, base: ir.Value, index: _Index, value: ir.Value, dtype: str) -> None:
    """Emit base[index] = value, in lane order."""
    for k in range(value.type.count):
        place = b.ir.gep(base, [index.lane(b, ir.Constant(_I64, k))])
        b.ir.store(b.extract(value, k), place, align=alignment(dtype))


def _write_tail(b: VectorBuilder, base: ir.Value, index: _Index, value: ir.Value, count: ir.Value, dtype: str) -> None:
    values = b.spill(value)

    def body(k: ir.Value) -> None:
        place = b.ir.gep(base, [index.lane(b, k)])
        b.ir.store(b.ir.load(b.ir.gep(values, [k])), place, align=alignment(dtype))

    b.for_lanes(count, body)


def _load_strided(b: VectorBuilder, dtype: str, lanes: int, p: ir.Value, i: ir.Value, stride: ir.Value) -> ir.Value:
    return _read(b, p, _Strided(i, stride, lanes), lanes, dtype)


def _load_strided_tail(
    b: VectorBuilder,
    dtype: str,
    lanes: int,
    fill: ir.Value,
    p: ir.Value,
    i: ir.Value,
    stride: ir.Value,
    count: ir.Value,
) -> ir.Value:
    return _read_tail(b, p, _Strided(i, stride, lanes), count, fill, dtype)


def _store_strided(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, stride: ir.Value, v: ir.Value) -> None:
    _write(b, p, _Strided(i, stride, v.type.count), v, dtype)


def _store_strided_tail(
    b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, stride: ir.Value, v: ir.Value, count: ir.Value
) -> None:
    _write_tail(b, p, _Strided(i, stride, v.type.count), v, count, dtype)


def _indices(name: str, index: types.Type) -> Vec:
    if not isinstance(index, Vec) or index.dtype not in ("int32", "int64") or not index.lanes:
        raise TypingError(f"{name}: expected an int32 or int64 vector of indices, got {index}")
    return index


def _indexed(b: VectorBuilder, index: ir.Value, dtype: str) -> _Indexed:
    return _Indexed(convert(b, index, dtype, "int64"))


@kernel_function
def gather(p: types.Type, index: types.Type) -> Definition:
    dtype, indices = pointer_dtype("gather", p), _indices("gather", index)
    lanes = indices.lanes

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        found = _read(b, values[0], _indexed(b, values[1], indices.dtype), lanes, dtype)
        return from_memory(b, found, dtype)

    return Vec(dtype, lanes)(p, index), emit


@kernel_function
def lookup(p: types.Type, v: types.Type) -> Definition:
    dtype = pointer_dtype("lookup", p)
    if not isinstance(v, Vec) or v.dtype != "uint8" or not v.lanes:
        raise TypingError(f"lookup: expected a uint8 vector, got {v}")
    lanes = v.lanes

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        if itemsize(dtype) == 1 and has("avx2") and lanes % _OCTETS == 0:
            found = by_registers(b, lambda part: _lookup_octets(b, values[0], part), values[1], register=_OCTETS)
        else:
            found = _read(b, values[0], _indexed(b, values[1], "uint8"), lanes, dtype)
        return from_memory(b, found, dtype)

    return Vec(dtype, lanes)(p, v), emit


def _lookup_octets(b: VectorBuilder, table: ir.Value, places: ir.Value) -> ir.Value:
    """Return table[places] for an AVX2 register of bytes.

    The low bits of each place select in each of 16 parts of the table, by a shuffle; the high bits select a part, by a
    tree of blends.
    """
    words = ir.VectorType(ir.IntType(16), _OCTETS // 2)

    def call(name: str, *operands: ir.Value) -> ir.Value:
        types_ = [operand.type for operand in operands]
        return b.ir.call(b.function(f"llvm.x86.avx2.{name}", places.type, types_), operands)

    low, found = b.and_(places, _PART - 1), []
    for start in range(0, 256, _PART):
        at = b.ir.bitcast(b.ir.gep(table, [ir.Constant(_I64, start)]), ir.VectorType(_I8, _PART).as_pointer())
        part = b.shuffle(b.ir.load(at, align=1), [*range(_PART)] * 2)
        found.append(call("pshuf.b", part, low))
    for bit in range(4, 8):
        # A selection reads the highest bit of each byte. Words are shifted: there is no shift of bytes.
        chosen = b.ir.bitcast(b.shl(b.ir.bitcast(places, words), 7 - bit), places.type)
        found = [call("pblendvb", *pair, chosen) for pair in zip(found[::2], found[1::2])]
    return found[0]


@kernel_function
def gather_tail(p: types.Type, index: types.Type, count: types.Type, fill: types.Type) -> Definition:
    dtype, indices = pointer_dtype("gather_tail", p), _indices("gather_tail", index)
    lanes = indices.lanes
    source = scalar_dtype("gather_tail", fill)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        rest = fill_vector(b, values[3], source, dtype, lanes)
        found = _read_tail(b, values[0], _indexed(b, values[1], indices.dtype), values[2], rest, dtype)
        return from_memory(b, found, dtype)

    return Vec(dtype, lanes)(p, index, _INT, scalar_type(source)), emit


def _scatterer(name: str, tail: bool) -> KernelFunction:
    def define(p: types.Type, index: types.Type, v: types.Type, *count: types.Type) -> Definition:
        dtype, indices = pointer_dtype(name, p), _indices(name, index)
        lanes = indices.lanes
        if v != value_type(dtype, lanes):
            raise TypingError(f"{name}: expected {lanes} lanes of {dtype}, got {v}")

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            b = VectorBuilder(builder)
            where, value = _indexed(b, values[1], indices.dtype), to_memory(b, values[2], dtype)
            if tail:
                _write_tail(b, values[0], where, value, values[3], dtype)
            else:
                _write(b, values[0], where, value, dtype)

        return types.void(p, index, v, *[_INT] * len(count)), emit

    return make_intrinsic(name, define, 4 if tail else 3)


@kernel_function
def store_where(p: types.Type, i: types.Type, v: types.Type, mask: types.Type) -> Definition:
    dtype = pointer_dtype("store_where", p)
    if not isinstance(v, Vec) or v.dtype != dtype or mask != Vec("bool", v.lanes):
        raise TypingError(f"store_where: expected {dtype} lanes and as many of bool, got {v} and {mask}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        value, start = to_memory(b, values[2], dtype), b.ir.gep(values[0], [values[1]])
        size = itemsize(dtype)
        # LLVM compiles this for one register; what it makes of others crashes.
        if size >= 4 and has("avx512vl") and 16 <= v.lanes * size <= 64:
            undefined = ir.Constant(value.type, ir.Undefined)
            chosen = b.intrinsic("experimental.vector.compress", [value, values[3], undefined])
            b.ir.store(chosen, b.ir.bitcast(start, value.type.as_pointer()), align=alignment(dtype))
            return b.ir.zext(b.ir.ctpop(b.ir.bitcast(values[3], ir.IntType(v.lanes))), _I64)
        count: ir.Value = ir.Constant(_I64, 0)
        for k in range(v.lanes):
            b.ir.store(b.extract(value, ir.Constant(_I64, k)), b.ir.gep(start, [count]), align=alignment(dtype))
            count = b.ir.add(count, b.ir.zext(b.extract(values[3], ir.Constant(_I64, k)), _I64))
        return count

    return types.int64(p, _INT, v, mask), emit


@kernel_function
def load_near(p: types.Type, i: types.Type, index: types.Type) -> Definition:
    dtype, indices = pointer_dtype("load_near", p), _indices("load_near", index)
    lanes = indices.lanes

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        start, places = b.ir.gep(values[0], [values[1]]), values[2]
        if (dtype, indices.dtype, lanes) != ("float32", "int32", 16) or not has("avx512f", "avx512vl"):
            return from_memory(b, _read(b, start, _indexed(b, places, indices.dtype), lanes, dtype), dtype)
        type_ = ir.VectorType(memory_element(dtype), lanes)
        halves = [
            b.ir.load(b.ir.bitcast(b.ir.gep(start, [ir.Constant(_I64, k)]), type_.as_pointer()), align=alignment(dtype))
            for k in (0, lanes)
        ]
        callee = b.function("llvm.x86.avx512.vpermi2var.ps.512", type_, [type_, places.type, type_])
        return b.ir.call(callee, [halves[0], places, halves[1]])

    return Vec(dtype, lanes)(p, _INT, index), emit


load_strided = loader("load_strided", 4, _load_strided)
load_strided_tail = tail_loader("load_strided_tail", 6, _load_strided_tail)
store_strided = storer("store_strided", 4, 3, _store_strided)
store_strided_tail = storer("store_strided_tail", 5, 3, _store_strided_tail)
scatter = _scatterer("scatter", tail=False)
scatter_tail = _scatterer("scatter_tail", tail=True)
