"""Transposes of square blocks in registers."""

from __future__ import annotations

from llvmlite import ir

from ...lang.memory import alignment
from ...lang.target import itemsize
from ...lang.vector import Definition, Values, literal_function, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from .. import host
from .stream import store_past_caches

_I32, _I64 = ir.IntType(32), ir.IntType(64)

CHUNK_BYTES = 16
"""Bytes of the part of a register within which elements are shuffled, which is cheapest on x86."""


@literal_function
def transpose_block(
    source: types.Type, source_row: types.Type, rows: types.Type, target: types.Type, target_row: types.Type,
    lanes: types.Type,
) -> Definition:  # fmt: skip
    """Store ``target[i * target_row + j] = source[min(j, rows - 1) * source_row + i]`` for i and j below LANES.

    ``source`` and ``target`` are pointers to elements of one dtype, ``lanes`` an integer literal, a power of two.
    """
    return _definition("transpose_block", source, target, lanes)


@literal_function
def transpose_block_stream(
    source: types.Type, source_row: types.Type, rows: types.Type, target: types.Type, target_row: types.Type,
    lanes: types.Type,
) -> Definition:  # fmt: skip
    """Do ``transpose_block`` with streaming stores for rows of the target that are whole cache lines."""
    return _definition("transpose_block_stream", source, target, lanes, streamed=True)


@literal_function
def transpose_part(
    source: types.Type, source_row: types.Type, rows: types.Type, target: types.Type, target_row: types.Type,
    columns: types.Type, lanes: types.Type,
) -> Definition:  # fmt: skip
    """Do ``transpose_block`` but store only the rows i below ``columns``, an integer literal."""
    return _definition("transpose_part", source, target, lanes, getattr(columns, "literal_value", None))


def _definition(
    name: str,
    source: types.Type,
    target: types.Type,
    lanes: types.Type,
    columns: int | None = None,
    streamed: bool = False,
) -> Definition:
    dtype = pointer_dtype(name, source)
    count = getattr(lanes, "literal_value", None)
    if not isinstance(count, int) or count < 2 or count & (count - 1):
        raise TypingError(f"{name}: LANES must be a literal power of two, got {lanes}")

    def emit(builder: ir.IRBuilder, args: Values) -> None:
        source, source_row, rows, target, target_row, *_ = args
        vector = ir.VectorType(source.type.pointee, count)
        align = alignment(dtype)

        def place(pointer: ir.Value, index: ir.Value) -> ir.Value:
            return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())

        last = builder.sub(rows, ir.Constant(_I64, 1))
        starts = []
        for j in range(count):
            row = ir.Constant(_I64, j)
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            starts.append(builder.gep(source, [builder.mul(row, source_row)]))
        chunk = min(count, max(CHUNK_BYTES // itemsize(dtype), 1))
        block = []
        for column in range(0, count if columns is None else columns, chunk):
            block += _transposed(builder, _columns(builder, starts, column, chunk, align), chunk)
        block = block[:columns]
        places = [place(target, builder.mul(ir.Constant(_I64, i), target_row)) for i in range(len(block))]

        def store_all() -> None:
            for value, at in zip(block, places):
                builder.store(value, at, align=align)

        if not streamed or count * itemsize(dtype) % host.CACHE_LINE:
            store_all()
            return
        row_bytes = builder.mul(target_row, ir.Constant(_I64, itemsize(dtype)))
        beyond = builder.and_(builder.or_(builder.ptrtoint(target, _I64), row_bytes), _I64(host.CACHE_LINE - 1))
        with builder.if_else(builder.icmp_unsigned("==", beyond, _I64(0)), likely=True) as (lines, others):
            with lines:
                for value, at in zip(block, places):
                    store_past_caches(builder, value, at)
            with others:
                store_all()

    literals = [types.literal(n) for n in (columns, count) if n is not None]
    return types.void(source, types.int64, types.int64, target, types.int64, *literals), emit


def _columns(builder: ir.IRBuilder, starts: list[ir.Value], column: int, chunk: int, align: int) -> list[ir.Value]:
    """Return ``chunk`` vectors: part k of the i-th has the elements from ``column`` of row ``k * chunk + i``."""
    narrow = ir.VectorType(starts[0].type.pointee, chunk).as_pointer()
    parts = []
    for start in starts:
        at = builder.bitcast(builder.gep(start, [ir.Constant(_I64, column)]), narrow)
        parts.append(builder.load(at, align=align))
    vectors = []
    for i in range(chunk):
        own = parts[i::chunk]
        while len(own) > 1:
            size = own[0].type.count
            mask = ir.Constant(ir.VectorType(_I32, 2 * size), [ir.Constant(_I32, k) for k in range(2 * size)])
            own = [builder.shuffle_vector(x, y, mask) for x, y in zip(own[::2], own[1::2])]
        vectors += own
    return vectors


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value], chunk: int) -> list[ir.Value]:
    """Return adjacent square blocks of ``chunk`` rows, each transposed: log2(chunk) perfect shuffles of the rows."""
    half = chunk // 2
    count = rows[0].type.count
    masks = []
    for start in (0, half):
        own = [start + k // 2 + (count if k % 2 else 0) for k in range(chunk)]
        places = [place + part for part in range(0, count, chunk) for place in own]
        masks.append(ir.Constant(ir.VectorType(_I32, count), [ir.Constant(_I32, place) for place in places]))
    for _ in range(chunk.bit_length() - 1):
        rows = [builder.shuffle_vector(rows[i], rows[i + half], mask) for i in range(half) for mask in masks]
    return rows
