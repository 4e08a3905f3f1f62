"""Grid-wide barriers of cooperative launches, and the last block of a group, by a counter in device memory.

PTX ISA, "Memory Consistency Model": a block barrier makes the block's writes visible to the thread that adds with
release semantics; the values it acquires are visible to the block after the next barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...lang.vector import Definition, KernelFunction, Values, make_intrinsic, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from .threads import block_barrier, effect, first_thread, target

_I32 = ir.IntType(32)
_SCOPE = "agent"  # a whole device: LLVM's AMDGPU usage, "Memory Scopes"
_MEET = """{
.reg .pred early;
.reg .b32 arrived;
red.release.gpu.add.u32 [$0], 1;
again:
ld.acquire.gpu.u32 arrived, [$0];
setp.lt.u32 early, arrived, $1;
@early bra again;
}"""
_ADD = "atom.acq_rel.gpu.add.u32 $0, [$1], 1;"

_Emit = Callable[[ir.IRBuilder, ir.Value, ir.Value], "ir.Value | None"]


def _meet(builder: ir.IRBuilder, place: ir.Value, count: ir.Value) -> None:
    block_barrier(builder)
    with builder.if_then(first_thread(builder)):
        if target().nvidia:
            effect(builder, _MEET, "l,r", [place, count])
        else:
            _meet_on_amd(builder, place, count)
    block_barrier(builder)


def _meet_on_amd(builder: ir.IRBuilder, place: ir.Value, count: ir.Value) -> None:
    builder.fence("release", _SCOPE)
    builder.atomic_rmw("add", place, _I32(1), "monotonic")
    again, done = builder.append_basic_block("again"), builder.append_basic_block("done")
    builder.branch(again)
    builder.position_at_end(again)
    arrived = builder.load_atomic(place, "monotonic", 4)
    builder.cbranch(builder.icmp_unsigned("<", arrived, count), again, done)
    builder.position_at_end(done)
    builder.fence("acquire", _SCOPE)


def _leave(builder: ir.IRBuilder, place: ir.Value, count: ir.Value) -> None:
    with builder.if_then(first_thread(builder)):
        _is_last(builder, place, count)


def _is_last(builder: ir.IRBuilder, place: ir.Value, count: ir.Value) -> ir.Value:
    if target().nvidia:
        before = effect(builder, _ADD, "=r,l", [place], _I32)
    else:
        before = builder.atomic_rmw("add", place, _I32(1), "acq_rel")
    last = builder.icmp_unsigned("==", builder.add(before, _I32(1)), count)
    with builder.if_then(last):
        builder.store(_I32(0), place)
    return builder.zext(last, _I32)


def _counted(name: str, emit: _Emit, result: types.Type = types.void) -> KernelFunction:
    def define(p: types.Type, count: types.Type) -> Definition:
        if pointer_dtype(name, p) != "int32":
            raise TypingError(f"{name}: blocks are counted in an int32 of the device's memory, got {p}")

        def emit_call(builder: ir.IRBuilder, values: Values) -> ir.Value | None:
            return emit(builder, values[0], builder.trunc(values[1], _I32))

        return result(p, types.int64), emit_call

    return make_intrinsic(name, define)


grid_barrier = _counted("grid_barrier", _meet)
grid_leave = _counted("grid_leave", _leave)
last_block = _counted("last_block", _is_last, types.int32)
