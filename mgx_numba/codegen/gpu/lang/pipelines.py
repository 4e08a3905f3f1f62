"""Asynchronous copies to shared memory, and loads of tensor-core fragments (sm_80 and above).

PTX ISA, "cp.async" and "ldmatrix". A fragment tile is eight rows of 16 bytes; lanes 8 m to 8 m + 7 point to the rows of
tile m. Lane t gets word t % 4 of row t // 4 of each tile; of a transposed tile of 16-bit elements, rows 2 (t % 4) and
the next in column t // 4.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import (
    Definition,
    KernelFunction,
    Values,
    Vec,
    constant_int,
    emits,
    kernel_function,
    literal_function,
    make_intrinsic,
    pointer_dtype,
)
from ...toolchain.numba_core import TypingError, types
from .mbarriers import shared_address
from .threads import effect, elements, expect, target, vector_of

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = Vec("int32", 4)
COPIED = 16
"""Bytes per copy, and per tile row."""
_LEAST_MATRIX = (7, 5)
"""Least compute capability with ldmatrix."""


@kernel_function
def copy_async(to: types.Type, i: types.Type, source: types.Type, j: types.Type, inside: types.Type) -> Definition:
    if pointer_dtype("copy_async", to) != pointer_dtype("copy_async", source):
        raise TypingError(f"copy_async: expected pointers to one dtype, got {to} and {source}")

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        expect("copy_async", target().copies)
        place = shared_address(builder, builder.gep(values[0], [values[1]]))
        origin = builder.ptrtoint(builder.gep(values[2], [values[3]]), _I64)
        wanted = builder.icmp_unsigned("!=", values[4], ir.Constant(values[4].type, 0))
        count = builder.select(wanted, _I32(COPIED), _I32(0))
        text = f"cp.async.cg.shared.global [$0], [$1], {COPIED}, $2;"
        effect(builder, text, "r,l,r", [place, origin, count])

    return types.void(to, types.int64, source, types.int64, types.boolean), emit


@emits(types.void())
def copy_commit(builder: ir.IRBuilder) -> None:
    expect("copy_commit", target().copies)
    effect(builder, "cp.async.commit_group;")


@literal_function
def copy_wait(pending: types.Type) -> Definition:
    groups = constant_int("copy_wait", "PENDING", pending, high=7)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        expect("copy_wait", target().copies)
        effect(builder, f"cp.async.wait_group {groups};")

    return types.void(pending), emit


@kernel_function
def prefetch_l2(p: types.Type, i: types.Type) -> Definition:
    pointer_dtype("prefetch_l2", p)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        if target().nvidia:
            place = builder.ptrtoint(builder.gep(values[0], [values[1]]), _I64)
            effect(builder, "prefetch.global.L2 [$0];", "l", [place])

    return types.void(p, types.int64), emit


def _ldmatrix(name: str, turned: bool) -> KernelFunction:
    def define(p: types.Type, i: types.Type) -> Definition:
        size = itemsize(pointer_dtype(name, p))
        if turned and size != 2:
            raise TypingError(f"{name}: tiles of 16-bit elements can be turned, got {p}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            expect(name, target().capability >= _LEAST_MATRIX)
            place = shared_address(builder, builder.gep(values[0], [values[1]]))
            text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * turned}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
            four = ir.LiteralStructType([_I32] * 4)
            found = effect(builder, text, "=r,=r,=r,=r,r", [place], four)
            return vector_of(builder, [builder.extract_value(found, k) for k in range(4)])

        return _WORDS(p, types.int64), emit

    return make_intrinsic(name, define)


def _half(name: str, first: int) -> KernelFunction:
    def define(v: types.Type) -> Definition:
        if not isinstance(v, Vec) or v.lanes != 4:
            raise TypingError(f"{name}: expected a vector of four lanes, got {v}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return vector_of(builder, elements(builder, values[0])[first : first + 2])

        return Vec(v.dtype, 2)(v), emit

    return make_intrinsic(name, define)


ldmatrix4, ldmatrix4_turned = _ldmatrix("ldmatrix4", False), _ldmatrix("ldmatrix4_turned", True)
low2, high2 = _half("low2", 0), _half("high2", 2)
