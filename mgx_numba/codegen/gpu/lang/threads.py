"""Thread indices, warp shuffles and block barriers.

A warp is 32 consecutive threads on every GPU; AMD's waves of 64 lanes hold two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.vector import (
    Definition,
    KernelFunction,
    Values,
    constant_int,
    describe,
    emits,
    kernel_function,
    literal_function,
    make_intrinsic,
    value_type,
)
from ...toolchain.numba_core import TypingError, types
from ..architecture import WARP, Architecture, chosen

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_AXES = "xyz"


def target() -> Architecture:
    """Return the architecture that is being compiled for.

    Raises:
        TypingError: none is set; the caller is outside of this back end.
    """
    found = chosen()
    if found is None:
        raise TypingError("the kernel language of GPUs is lowered for one architecture, and none is named")
    return found


def call(builder: ir.IRBuilder, name: str, result: ir.Type, operands: Sequence[ir.Value] = ()) -> ir.Value:
    """Emit a call of an LLVM intrinsic by its full name."""
    callee = VectorBuilder(builder).function(name, result, [v.type for v in operands])
    return builder.call(callee, operands)


def inline(
    builder: ir.IRBuilder, text: str, constraints: str, operands: Sequence[ir.Value], result: ir.Type
) -> ir.Value:
    """Emit inline PTX without side effects."""
    kind = ir.FunctionType(result, [v.type for v in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, False), operands)


def effect(
    builder: ir.IRBuilder, text: str, constraints: str = "", operands: Sequence[ir.Value] = (),
    result: ir.Type | None = None,
) -> ir.Value:  # fmt: skip
    """Emit inline PTX with side effects, which may read and write memory."""
    kind = ir.FunctionType(result or ir.VoidType(), [v.type for v in operands])
    whole = ",".join([*([constraints] if constraints else []), "~{memory}"])
    return builder.call(ir.InlineAsm(kind, text, whole, True), operands)


def expect(name: str, has: bool, what: str = "such instruction") -> None:
    """Raise unless the architecture that is compiled for has what the kernel function ``name`` needs."""
    if not has:
        raise TypingError(f"{name}: {target().name} has no {what}")


def elements(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    """Emit the elements of a vector."""
    return [builder.extract_element(vector, _I32(k)) for k in range(vector.type.count)]


def vector_of(builder: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Emit the vector of some elements."""
    result = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for k, value in enumerate(values):
        result = builder.insert_element(result, value, _I32(k))
    return result


def _index(name: str, nvidia: str, amd: str) -> KernelFunction:
    """Return the intrinsic that reads an index along an AXIS from 0 to 2 as int64."""

    def define(axis: types.Type) -> Definition:
        letter = _AXES[constant_int(name, "AXIS", axis, high=2)]

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            intrinsic = (nvidia if target().nvidia else amd) + letter
            return builder.zext(call(builder, intrinsic, _I32), _I64)

        return types.int64(axis), emit

    return make_intrinsic(name, define, literal=True)


def block_barrier(builder: ir.IRBuilder) -> None:
    """Emit a barrier of all threads of the block."""
    if target().nvidia:
        call(builder, "llvm.nvvm.barrier.cta.sync.aligned.all", ir.VoidType(), [_I32(0)])
    else:
        builder.fence("release", "workgroup")
        call(builder, "llvm.amdgcn.s.barrier", ir.VoidType())
        builder.fence("acquire", "workgroup")


def first_thread(builder: ir.IRBuilder) -> ir.Value:
    """Return the condition that this is the block's thread 0."""
    axis = "llvm.nvvm.read.ptx.sreg.tid.x" if target().nvidia else "llvm.amdgcn.workitem.id.x"
    return builder.icmp_unsigned("==", call(builder, axis, _I32), _I32(0))


@emits(types.void())
def barrier(builder: ir.IRBuilder) -> None:
    block_barrier(builder)


@emits(types.void())
def grid_wait(builder: ir.IRBuilder) -> None:
    if target().overlaps:
        effect(builder, "griddepcontrol.wait;")


@emits(types.int64())
def warp_index(builder: ir.IRBuilder) -> ir.Value:
    axis = "llvm.nvvm.read.ptx.sreg.tid.x" if target().nvidia else "llvm.amdgcn.workitem.id.x"
    own = builder.lshr(call(builder, axis, _I32), _I32(WARP.bit_length() - 1))
    if target().nvidia:  # what lanes get from one of them is known to be one value for all
        operands = [_I32(-1), own, _I32(0), _I32(WARP - 1)]
        own = call(builder, "llvm.nvvm.shfl.sync.idx.i32", _I32, operands)
    return builder.zext(own, _I64)


@emits(types.int64(types.int64, types.int64))
def idiv32(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.zext(builder.udiv(builder.trunc(a, _I32), builder.trunc(b, _I32)), _I64)


def _exchange(builder: ir.IRBuilder, word: ir.Value, mask: int) -> ir.Value:
    """Return a 32-bit word of the lane ``lane ^ mask``."""
    if target().nvidia:
        operands = [_I32(-1), word, _I32(mask), _I32(WARP - 1)]
        return call(builder, "llvm.nvvm.shfl.sync.bfly.i32", _I32, operands)
    pattern = mask << 10 | WARP - 1  # "and" mask of all five bits, "xor" mask: DS_SWIZZLE_B32, bit-masked mode
    return call(builder, "llvm.amdgcn.ds.swizzle", _I32, [word, _I32(pattern)])


def _words(builder: ir.IRBuilder, value: ir.Value, emit: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Apply ``emit`` to each 32-bit word of a scalar."""
    kind = value.type
    if isinstance(kind, ir.IntType) and kind.width < 32:
        return builder.trunc(emit(builder.zext(value, _I32)), kind)
    if kind in (ir.FloatType(), _I32):
        return builder.bitcast(emit(builder.bitcast(value, _I32)), kind)
    halves = elements(builder, builder.bitcast(value, ir.VectorType(_I32, 2)))
    return builder.bitcast(vector_of(builder, [emit(half) for half in halves]), kind)


def shuffled(builder: ir.IRBuilder, value: ir.Value, mask: int) -> ir.Value:
    """Return a scalar of the lane ``lane ^ mask``."""
    return _words(builder, value, lambda word: _exchange(builder, word, mask))


@literal_function
def shuffle_xor(x: types.Type, mask: types.Type) -> Definition:
    dtype, lanes = describe("shuffle_xor", x)
    bits = constant_int("shuffle_xor", "MASK", mask, low=1, high=WARP - 1)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        if not lanes:
            return shuffled(builder, values[0], bits)
        return vector_of(builder, [shuffled(builder, own, bits) for own in elements(builder, values[0])])

    kind = value_type(dtype, lanes)
    return kind(kind, mask), emit


@kernel_function
def shuffle_halves(x: types.Type) -> Definition:
    dtype, lanes = describe("shuffle_halves", x)
    if lanes or dtype not in ("float32", "int32"):
        raise TypingError(f"shuffle_halves: expected a float32 or an int32, got {x}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        expect("shuffle_halves", not target().nvidia and target().wave == 2 * WARP, f"waves of {2 * WARP}")
        low = call(builder, "llvm.amdgcn.mbcnt.lo", _I32, [_I32(-1), _I32(0)])
        lane = call(builder, "llvm.amdgcn.mbcnt.hi", _I32, [_I32(-1), low])
        place = builder.shl(builder.xor(lane, _I32(WARP)), _I32(2))  # in bytes
        return _words(builder, values[0], lambda w: call(builder, "llvm.amdgcn.ds.bpermute", _I32, [place, w]))

    return x(x), emit


block_index = _index("block_index", "llvm.nvvm.read.ptx.sreg.ctaid.", "llvm.amdgcn.workgroup.id.")
thread_index = _index("thread_index", "llvm.nvvm.read.ptx.sreg.tid.", "llvm.amdgcn.workitem.id.")
