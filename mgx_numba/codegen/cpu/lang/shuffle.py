"""Intrinsics that rearrange elements in registers between two memory locations.

interleave(p, p_step, q, COUNT, LANES)
    q[k * COUNT + r] = p[r * p_step + k] for r below COUNT and k below LANES
deinterleave(p, q, q_step, COUNT, LANES)
    q[r * q_step + k] = p[k * COUNT + r] for r below COUNT and k below LANES
load_every(p, i, COUNT, LANES)
    p[i], p[i + COUNT], ...; also reads the COUNT - 1 elements after the last
load_every_tail(p, i, COUNT, count, fill, LANES)
    the first count (0 to LANES) lanes from memory, fill in the others; reads nothing after the last
load_back(p, i, LANES)
    p[i], p[i - 1], ...

Source and target must not overlap. LANES is a power of two from 2, COUNT is 2, 3 or 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.memory import alignment, fill_vector, from_memory, masked_load, memory_element, scalar_dtype
from ...lang.vector import (
    Definition,
    Values,
    Vec,
    constant_int,
    literal_function,
    pointer_dtype,
    scalar_type,
)
from ...toolchain.numba_core import TypingError, types

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INT = types.int64


def _same_pointers(name: str, p: types.Type, q: types.Type) -> str:
    dtype = pointer_dtype(name, p)
    if pointer_dtype(name, q) != dtype:
        raise TypingError(f"{name}: source and target must have one dtype, got {p} and {q}")
    return dtype


class _Mover:
    """Copy vectors of a dtype, in memory form, between memory locations."""

    def __init__(self, builder: ir.IRBuilder, dtype: str) -> None:
        self.b = VectorBuilder(builder)
        self.ir = builder
        self.element = memory_element(dtype)
        self.align = alignment(dtype)

    def _place(self, base: ir.Value, index: ir.Value | int, lanes: int) -> ir.Value:
        index = ir.Constant(_I64, index) if isinstance(index, int) else index
        return self.ir.bitcast(self.ir.gep(base, [index]), ir.VectorType(self.element, lanes).as_pointer())

    def row(self, step: ir.Value, k: int) -> ir.Value:
        return self.b.imul(step, k)

    def load(self, base: ir.Value, index: ir.Value | int, lanes: int) -> ir.Value:
        return self.ir.load(self._place(base, index, lanes), align=self.align)

    def store(self, base: ir.Value, index: ir.Value | int, value: ir.Value) -> None:
        self.ir.store(value, self._place(base, index, value.type.count), align=self.align)

    def shuffle(self, x: ir.Value, y: ir.Value, lanes: Sequence[int | None]) -> ir.Value:
        """Return lanes of x followed by y; None where any value will do."""
        mask = [ir.Constant(_I32, ir.Undefined if k is None else k) for k in lanes]
        return self.ir.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), mask))

    def select(self, vectors: Sequence[ir.Value], lanes: Sequence[int]) -> ir.Value:
        """Return selected lanes of up to four concatenated vectors of equal length."""
        width = vectors[0].type.count
        if len(vectors) <= 2:
            return self.shuffle(vectors[0], vectors[-1], lanes)
        undefined = ir.Constant(vectors[0].type, ir.Undefined)
        first = self.shuffle(vectors[0], vectors[1], range(2 * width))
        rest = [*vectors[2:], undefined][:2]
        return self.shuffle(first, self.shuffle(rest[0], rest[1], range(2 * width)), lanes)


def _counts(name: str, count: types.Type, lanes: types.Type) -> tuple[int, int]:
    return constant_int(name, "COUNT", count, 2, 4), constant_int(name, "LANES", lanes, low=2)


@literal_function
def interleave(p: types.Type, p_step: types.Type, q: types.Type, count: types.Type, lanes: types.Type) -> Definition:
    dtype = _same_pointers("interleave", p, q)
    rows, width = _counts("interleave", count, lanes)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        m = _Mover(builder, dtype)
        vectors = [m.load(values[0], m.row(values[1], r), width) for r in range(rows)]
        for part in range(rows):
            places = range(part * width, (part + 1) * width)
            value = m.select(vectors, [(k % rows) * width + k // rows for k in places])
            m.store(values[2], part * width, value)

    return types.void(p, _INT, q, count, lanes), emit


@literal_function
def deinterleave(p: types.Type, q: types.Type, q_step: types.Type, count: types.Type, lanes: types.Type) -> Definition:
    dtype = _same_pointers("deinterleave", p, q)
    rows, width = _counts("deinterleave", count, lanes)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        m = _Mover(builder, dtype)
        vectors = [m.load(values[0], part * width, width) for part in range(rows)]
        for r in range(rows):
            m.store(values[1], m.row(values[2], r), m.select(vectors, [k * rows + r for k in range(width)]))

    return types.void(p, q, _INT, count, lanes), emit


@literal_function
def load_every(p: types.Type, i: types.Type, count: types.Type, lanes: types.Type) -> Definition:
    dtype = pointer_dtype("load_every", p)
    rows, width = _counts("load_every", count, lanes)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        m = _Mover(builder, dtype)
        start = builder.gep(values[0], [values[1]])
        vectors = [m.load(start, part * width, width) for part in range(rows)]
        return from_memory(m.b, m.select(vectors, [k * rows for k in range(width)]), dtype)

    return Vec(dtype, width)(p, _INT, count, lanes), emit


@literal_function
def load_every_tail(
    p: types.Type, i: types.Type, count: types.Type, left: types.Type, fill: types.Type, lanes: types.Type
) -> Definition:
    dtype = pointer_dtype("load_every_tail", p)
    rows, width = _counts("load_every_tail", count, lanes)
    source = scalar_dtype("load_every_tail", fill)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        m = _Mover(builder, dtype)
        others = fill_vector(m.b, values[4], source, dtype, width)
        readable = m.b.isub(m.b.imul(values[3], rows), rows - 1)
        vectors = []
        for part in range(rows):
            start = builder.gep(values[0], [m.b.iadd(values[1], part * width)])
            there = m.b.intrinsic("smin", [m.b.isub(readable, part * width), width])
            vectors.append(masked_load(m.b, start, there, others, dtype))
        return from_memory(m.b, m.select(vectors, [k * rows for k in range(width)]), dtype)

    return Vec(dtype, width)(p, _INT, count, _INT, scalar_type(source), lanes), emit


@literal_function
def load_back(p: types.Type, i: types.Type, lanes: types.Type) -> Definition:
    dtype = pointer_dtype("load_back", p)
    width = constant_int("load_back", "LANES", lanes, low=2)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        m = _Mover(builder, dtype)
        vector = m.load(values[0], m.b.isub(values[1], width - 1), width)
        return from_memory(m.b, m.shuffle(vector, vector, range(width - 1, -1, -1)), dtype)

    return Vec(dtype, width)(p, _INT, lanes), emit
