"""Blocks that run side by side and reach each other's memory (sm_90 and above).

PTX ISA, "Cluster of Cooperative Thread Arrays". Memory of the same name lies at the same place in each block of a
cluster, so that a pointer into one's own stands for the others' too.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.vector import make_intrinsic, pointer_dtype
from .mbarriers import shared_address
from .threads import call, inline, target

__all__ = ["cluster_barrier", "cluster_rank", "mbarrier_arrive_at"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_LEAST_CAPABILITY = (9, 0)
"""Compute capability from which on there are clusters."""
_ARRIVE = """{
.reg .b32 there;
mapa.shared::cluster.u32 there, $0, $1;
mbarrier.arrive.shared::cluster.b64 _, [there];
}"""
"""Releases what the block knows, as an arrival at a barrier of its own does. A release for the cluster would wait for
all that is on its way to memory."""


def _check(name: str) -> None:
    if target().capability < _LEAST_CAPABILITY:
        raise TypingError(f"{name}: {target().name} has no clusters of blocks")


def _rank() -> Any:
    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        _check("cluster_rank")
        return builder.zext(call(builder, "llvm.nvvm.read.ptx.sreg.cluster.ctarank", _I32), _I64)

    return types.int64(), lower


def _barrier() -> Any:
    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check("cluster_barrier")
        for text in ("barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"):
            inline(builder, text, "~{memory}", ir.VoidType(), [], True)
        return context.get_dummy_value()

    return types.void(), lower


def _arrive_at(p: types.Type, rank: types.Type) -> Any:
    if pointer_dtype("mbarrier_arrive_at", p) != "int64":
        raise TypingError(f"mbarrier_arrive_at: a barrier is an int64 of the block's memory, got {p}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check("mbarrier_arrive_at")
        operands = [shared_address(builder, values[0]), builder.trunc(values[1], _I32)]
        inline(builder, _ARRIVE, "r,r,~{memory}", ir.VoidType(), operands, True)
        return context.get_dummy_value()

    return types.void(p, types.int64), lower


cluster_rank = make_intrinsic("cluster_rank", _rank, 0)
cluster_barrier = make_intrinsic("cluster_barrier", _barrier, 0)
mbarrier_arrive_at = make_intrinsic("mbarrier_arrive_at", _arrive_at, 2)
