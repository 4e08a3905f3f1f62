"""Thread block clusters and distributed shared memory (sm_90 and above).

PTX ISA, "Cluster of Cooperative Thread Arrays". A shared array has the same offset in every block of a cluster, so a
pointer into the own array also addresses the others.

A cluster barrier with memory ordering waits for all stores of its threads. Asynchronous remote stores (PTX ISA,
"st.async") instead count bytes at an mbarrier of the receiving block.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import (
    Definition,
    KernelFunction,
    Values,
    describe,
    emits,
    kernel_function,
    make_intrinsic,
    pointer_dtype,
)
from ...toolchain.numba_core import TypingError, types
from .mbarriers import shared_address
from .threads import call, effect, expect, target

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ARRIVE, _ARRIVE_RELAXED = "barrier.cluster.arrive.release;", "barrier.cluster.arrive.relaxed;"
_WAIT = "barrier.cluster.wait.acquire;"
_SEND = """{{
.reg .b32 there, counter;
mapa.shared::cluster.u32 there, $0, $3;
mapa.shared::cluster.u32 counter, $1, $3;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b{bits} [there], $2, [counter];
}}"""
_SENT_BITS = (32, 64)  # of one thread: PTX ISA, "st.async"


def _check(name: str) -> None:
    expect(name, target().clusters, "clusters of blocks")


@emits(types.int64())
def cluster_rank(builder: ir.IRBuilder) -> ir.Value:
    _check("cluster_rank")
    return builder.zext(call(builder, "llvm.nvvm.read.ptx.sreg.cluster.ctarank", _I32), _I64)


def _barrier(name: str, *texts: str) -> KernelFunction:
    def define() -> Definition:
        def emit(builder: ir.IRBuilder, values: Values) -> None:
            _check(name)
            for text in texts:
                effect(builder, text)

        return types.void(), emit

    return make_intrinsic(name, define)


@kernel_function
def cluster_send(p: types.Type, i: types.Type, x: types.Type, rank: types.Type, b: types.Type) -> Definition:
    dtype, lanes = describe("cluster_send", x)
    if pointer_dtype("cluster_send", p) != dtype or lanes or pointer_dtype("cluster_send", b) != "int64":
        raise TypingError(f"cluster_send: a scalar goes to a pointer to its type, and counts at an int64; got {p}, {b}")

    bits = 8 * itemsize(dtype)
    if bits not in _SENT_BITS:
        raise TypingError(f"cluster_send: {dtype} has neither 32 nor 64 bits")

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        _check("cluster_send")
        to = shared_address(builder, builder.gep(values[0], [values[1]]))
        word = builder.bitcast(values[2], ir.IntType(bits))
        operands = [to, shared_address(builder, values[4]), word, builder.trunc(values[3], _I32)]
        effect(builder, _SEND.format(bits=bits), f"r,r,{'r' if bits == 32 else 'l'},r", operands)

    return types.void(p, types.int64, x, types.int64, b), emit


cluster_barrier = _barrier("cluster_barrier", _ARRIVE, _WAIT)
cluster_arrive = _barrier("cluster_arrive", _ARRIVE_RELAXED)
cluster_wait = _barrier("cluster_wait", _WAIT)
