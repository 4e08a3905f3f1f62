"""mbarriers in shared memory, at which threads and TMA loads arrive (sm_90 and above), and warp barriers.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase completes when all arrivals and
all expected bytes have come; then the next phase begins. Phases are numbered from 0.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.vector import Definition, KernelFunction, Values, emits, kernel_function, make_intrinsic, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from .blocks import SHARED_SPACE
from .threads import call, effect, expect, target

_I32 = ir.IntType(32)
_LEAST_CAPABILITY = (9, 0)
"""Least compute capability whose mbarriers count bytes."""
_WAIT = """{
.reg .pred complete;
again:
mbarrier.try_wait.parity.shared::cta.b64 complete, [$0], $1;
@complete bra done;
bra again;
done:
}"""

_ARRIVE_AT = """{
.reg .b32 there;
mapa.shared::cluster.u32 there, $0, $1;
mbarrier.arrive.shared::cluster.b64 _, [there];
}"""


def shared_address(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """Return the 32-bit shared-memory address of a generic pointer."""
    place = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, SHARED_SPACE))
    return builder.ptrtoint(place, _I32)


def _of_barrier(name: str, text: str, numbers: int) -> KernelFunction:
    """Return the definition of an mbarrier instruction with ``numbers`` int64 operands."""

    def define(p: types.Type, *rest: types.Type) -> Definition:
        if pointer_dtype(name, p) != "int64":
            raise TypingError(f"{name}: a barrier is an int64 of the block's memory, got {p}")

        def emit(builder: ir.IRBuilder, values: Values) -> None:
            expect(name, target().capability >= _LEAST_CAPABILITY)
            operands = [shared_address(builder, values[0]), *(builder.trunc(v, _I32) for v in values[1:])]
            effect(builder, text, ",".join("r" * len(operands)), operands)

        return types.void(p, *[types.int64] * numbers), emit

    return make_intrinsic(name, define, 1 + numbers)


@kernel_function
def mbarrier_arrive_at(p: types.Type, rank: types.Type) -> Definition:
    if pointer_dtype("mbarrier_arrive_at", p) != "int64":
        raise TypingError(f"mbarrier_arrive_at: a barrier is an int64 of the block's memory, got {p}")

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        expect("mbarrier_arrive_at", target().clusters, "clusters of blocks")
        operands = [shared_address(builder, values[0]), builder.trunc(values[1], _I32)]
        effect(builder, _ARRIVE_AT, "r,r", operands)

    return types.void(p, types.int64), emit


@emits(types.void())
def mbarrier_fence(builder: ir.IRBuilder) -> None:
    effect(builder, "fence.mbarrier_init.release.cluster;")


@emits(types.void())
def warp_barrier(builder: ir.IRBuilder) -> None:
    if target().nvidia:
        call(builder, "llvm.nvvm.bar.warp.sync", ir.VoidType(), [_I32(-1)])
    else:
        builder.fence("release", "wavefront")
        call(builder, "llvm.amdgcn.wave.barrier", ir.VoidType())
        builder.fence("acquire", "wavefront")


mbarrier_init = _of_barrier("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", 1)
mbarrier_arrive = _of_barrier("mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", 0)
mbarrier_expect = _of_barrier("mbarrier_expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", 1)
mbarrier_wait = _of_barrier("mbarrier_wait", _WAIT, 1)
