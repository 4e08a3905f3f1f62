"""Intrinsics for tensors larger than the caches: streaming stores, prefetches, and loops that are not unrolled.

Streaming stores do not read the cache line that they replace, which saves a third of the traffic of a copy. Other
threads see them in order only after `stream_fence`.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.memory import alignment, storer
from ...lang.target import itemsize
from ...lang.vector import Definition, Values, emits, kernel_function, pointer_dtype
from ...toolchain.numba_core import types
from .. import host

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INT = types.int64


def _misaligned(b: VectorBuilder, address: ir.Value) -> ir.Value:
    """Return the bytes from the last cache line boundary to an address."""
    return b.and_(b.ir.ptrtoint(address, _I64), host.CACHE_LINE - 1)


def store_past_caches(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    """Store whole cache lines, aligned, without reading the lines that they replace."""
    store = builder.store(value, place, align=host.CACHE_LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _store_stream(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, v: ir.Value) -> None:
    address = b.ir.gep(p, [i])
    place = b.ir.bitcast(address, v.type.as_pointer())
    if v.type.count * itemsize(dtype) % host.CACHE_LINE:
        b.ir.store(v, place, align=alignment(dtype))
        return
    aligned = b.icmp("==", _misaligned(b, address), 0)
    with b.ir.if_else(aligned, likely=True) as (streamed, cached):
        with streamed:
            store_past_caches(b.ir, v, place)
        with cached:
            b.ir.store(v, place, align=alignment(dtype))


@kernel_function
def stream_head(p: types.Type, i: types.Type) -> Definition:
    size = itemsize(pointer_dtype("stream_head", p))

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        missing = b.and_(b.isub(0, _misaligned(b, builder.gep(values[0], [values[1]]))), host.CACHE_LINE - 1)
        return builder.sdiv(missing, ir.Constant(_I64, size))

    return _INT(p, _INT), emit


@emits(types.void())
def stream_fence(builder: ir.IRBuilder) -> None:
    if host.triple().startswith(("x86_64", "i386", "i686")):
        builder.call(VectorBuilder(builder).function("llvm.x86.sse.sfence", ir.VoidType(), []), [])
    else:
        builder.fence("release")


@kernel_function
def prefetch(p: types.Type, i: types.Type) -> Definition:
    pointer_dtype("prefetch", p)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        b = VectorBuilder(builder)
        address = builder.bitcast(builder.gep(values[0], [values[1]]), ir.IntType(8).as_pointer())
        read, near, data = (ir.Constant(_I32, k) for k in (0, 3, 1))
        callee = b.function("llvm.prefetch.p0", ir.VoidType(), [address.type, _I32, _I32, _I32])
        builder.call(callee, [address, read, near, data])

    return types.void(p, _INT), emit


@emits(types.void())
def keep_rolled(builder: ir.IRBuilder) -> None:
    nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "", side_effect=True)
    builder.call(nothing, [], attrs=("convergent", "nounwind"))  # LLVM splits no remainder off such a loop


store_stream = storer("store_stream", 3, 2, _store_stream)
