"""Asynchronous copies to shared memory, and loads of tensor-core fragments (sm_80 and above).

PTX ISA, "cp.async" and "ldmatrix". A fragment tile is eight rows of 16 bytes; lanes 8 m to 8 m + 7 point to the rows of
tile m. Lane t gets word t % 4 of row t // 4 of each tile; of a transposed tile of 16-bit elements, rows 2 (t % 4) and
the next in column t // 4.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import Vec, constant_int, make_intrinsic, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from .mbarriers import shared_address
from .threads import inline, target

__all__ = ["copy_async", "copy_commit", "copy_wait", "high2", "ldmatrix4", "ldmatrix4_turned", "low2", "prefetch_l2"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORDS = Vec("int32", 4)
COPIED = 16
"""Bytes per copy, and per tile row."""
_LEAST_MATRIX = (7, 5)
"""Least compute capability with ldmatrix."""


def _check_target(name: str, has: bool) -> None:
    if not has:
        raise TypingError(f"{name}: {target().name} has no such instruction")


def _copy_async(to: types.Type, i: types.Type, source: types.Type, j: types.Type, inside: types.Type) -> Any:
    if pointer_dtype("copy_async", to) != pointer_dtype("copy_async", source):
        raise TypingError(f"copy_async: expected pointers to one dtype, got {to} and {source}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check_target("copy_async", target().copies)
        place = shared_address(builder, builder.gep(values[0], [values[1]]))
        origin = builder.ptrtoint(builder.gep(values[2], [values[3]]), _I64)
        wanted = builder.icmp_unsigned("!=", values[4], ir.Constant(values[4].type, 0))
        count = builder.select(wanted, _I32(COPIED), _I32(0))
        text = f"cp.async.cg.shared.global [$0], [$1], {COPIED}, $2;"
        inline(builder, text, "r,l,r,~{memory}", ir.VoidType(), [place, origin, count], True)
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.boolean), lower


def _copy_commit() -> Any:
    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check_target("copy_commit", target().copies)
        inline(builder, "cp.async.commit_group;", "~{memory}", ir.VoidType(), [], True)
        return context.get_dummy_value()

    return types.void(), lower


def _copy_wait(pending: types.Type) -> Any:
    groups = constant_int("copy_wait", "PENDING", pending, high=7)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check_target("copy_wait", target().copies)
        inline(builder, f"cp.async.wait_group {groups};", "~{memory}", ir.VoidType(), [], True)
        return context.get_dummy_value()

    return types.void(pending), lower


def _prefetch(p: types.Type, i: types.Type) -> Any:
    pointer_dtype("prefetch_l2", p)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        if target().nvidia:
            place = builder.ptrtoint(builder.gep(values[0], [values[1]]), _I64)
            inline(builder, "prefetch.global.L2 [$0];", "l", ir.VoidType(), [place], True)
        return context.get_dummy_value()

    return types.void(p, types.int64), lower


def _ldmatrix(name: str, turned: bool) -> Any:
    def define(p: types.Type, i: types.Type) -> Any:
        size = itemsize(pointer_dtype(name, p))
        if turned and size != 2:
            raise TypingError(f"{name}: tiles of 16-bit elements can be turned, got {p}")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            _check_target(name, target().capability >= _LEAST_MATRIX)
            place = shared_address(builder, builder.gep(values[0], [values[1]]))
            text = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * turned}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
            four = ir.LiteralStructType([_I32] * 4)
            found = inline(builder, text, "=r,=r,=r,=r,r,~{memory}", four, [place], True)
            result = ir.Constant(ir.VectorType(_I32, 4), ir.Undefined)
            for k in range(4):
                result = builder.insert_element(result, builder.extract_value(found, k), _I32(k))
            return result

        return _WORDS(p, types.int64), lower

    return make_intrinsic(name, define, 2)


def _half(name: str, first: int) -> Any:
    def define(v: types.Type) -> Any:
        if not isinstance(v, Vec) or v.lanes != 4:
            raise TypingError(f"{name}: expected a vector of four lanes, got {v}")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            result = ir.Constant(ir.VectorType(values[0].type.element, 2), ir.Undefined)
            for k in range(2):
                result = builder.insert_element(result, builder.extract_element(values[0], _I32(first + k)), _I32(k))
            return result

        return Vec(v.dtype, 2)(v), lower

    return make_intrinsic(name, define, 1)


copy_async = make_intrinsic("copy_async", _copy_async, 5)
copy_commit = make_intrinsic("copy_commit", _copy_commit, 0)
copy_wait = make_intrinsic("copy_wait", _copy_wait, 1, literal=True)
prefetch_l2 = make_intrinsic("prefetch_l2", _prefetch, 2)
ldmatrix4, ldmatrix4_turned = _ldmatrix("ldmatrix4", False), _ldmatrix("ldmatrix4_turned", True)
low2, high2 = _half("low2", 0), _half("high2", 2)
