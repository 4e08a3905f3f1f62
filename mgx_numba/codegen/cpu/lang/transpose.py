"""Square blocks transposed in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from .. import host
from .memory import Definition, alignment
from .stream import store_past_caches
from .vector import pointer_dtype

__all__ = ["transpose_block", "transpose_block_stream", "transpose_part"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic(prefer_literal=True)
def transpose_block(typingctx, source, source_row, rows, target, target_row, lanes):
    """``target[i * target_row + j] = source[min(j, rows - 1) * source_row + i]`` for i and j below LANES.

    ``source`` and ``target`` are pointers to elements of one dtype, ``lanes`` an integer literal, a power of two.
    """
    return _definition("transpose_block", source, target, lanes)


@intrinsic(prefer_literal=True)
def transpose_block_stream(typingctx, source, source_row, rows, target, target_row, lanes):
    """As ``transpose_block``; rows of the target that are whole cache lines go past the caches."""
    return _definition("transpose_block_stream", source, target, lanes, streamed=True)


@intrinsic(prefer_literal=True)
def transpose_part(typingctx, source, source_row, rows, target, target_row, columns, lanes):
    """As ``transpose_block``, of which only the rows i below ``columns``, an integer literal, are stored."""
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

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        source, source_row, rows, target, target_row, *_ = args
        vector = ir.VectorType(source.type.pointee, count)
        align = alignment(dtype)

        def place(pointer: ir.Value, index: ir.Value) -> ir.Value:
            return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())

        last = builder.sub(rows, ir.Constant(_I64, 1))
        block = []
        for j in range(count):
            row = ir.Constant(_I64, j)
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            block.append(builder.load(place(source, builder.mul(row, source_row)), align=align))
        block = _transposed(builder, block)[:columns]
        places = [place(target, builder.mul(ir.Constant(_I64, i), target_row)) for i in range(len(block))]

        def store_all() -> None:
            for value, at in zip(block, places):
                builder.store(value, at, align=align)

        if not streamed or count * host.itemsize(dtype) % host.CACHE_LINE:
            store_all()
            return context.get_dummy_value()
        row_bytes = builder.mul(target_row, ir.Constant(_I64, host.itemsize(dtype)))
        beyond = builder.and_(builder.or_(builder.ptrtoint(target, _I64), row_bytes), _I64(host.CACHE_LINE - 1))
        with builder.if_else(builder.icmp_unsigned("==", beyond, _I64(0)), likely=True) as (lines, others):
            with lines:
                for value, at in zip(block, places):
                    store_past_caches(builder, value, at)
            with others:
                store_all()
        return context.get_dummy_value()

    literals = [types.literal(n) for n in (columns, count) if n is not None]
    return types.void(source, types.int64, types.int64, target, types.int64, *literals), lower


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Rows of the transposed square block: log2(n) perfect shuffles of the list of rows."""
    count = len(rows)
    half = count // 2
    masks = [
        ir.Constant(
            ir.VectorType(_I32, count),
            [ir.Constant(_I32, start + k // 2 + (count if k % 2 else 0)) for k in range(count)],
        )
        for start in (0, half)
    ]
    for _ in range(count.bit_length() - 1):
        rows = [builder.shuffle_vector(rows[i], rows[i + half], mask) for i in range(half) for mask in masks]
    return rows
