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
from .threads import call, inline, target

__all__ = ["cluster_barrier", "cluster_pointer", "cluster_rank"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_MAP = "mapa.u64 $0, $1, $2;"


def _check(name: str) -> None:
    if not target().clusters:
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


def _pointer(p: types.Type, rank: types.Type) -> Any:
    pointer_dtype("cluster_pointer", p)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        _check("cluster_pointer")
        place = builder.ptrtoint(values[0], _I64)
        there = inline(builder, _MAP, "=l,l,r", _I64, [place, builder.trunc(values[1], _I32)], False)
        return builder.inttoptr(there, values[0].type)

    return p(p, types.int64), lower


cluster_rank = make_intrinsic("cluster_rank", _rank, 0)
cluster_barrier = make_intrinsic("cluster_barrier", _barrier, 0)
cluster_pointer = make_intrinsic("cluster_pointer", _pointer, 2)
