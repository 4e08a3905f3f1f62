"""Intrinsics that reduce the lanes of a vector to a scalar, always in the same tree order."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..toolchain.numba_core import Type, TypingError
from . import arith
from .builder import VectorBuilder, is_signed
from .vector import FLOATS, Definition, KernelFunction, Values, Vec, make_intrinsic, scalar_type


def _fold(
    b: VectorBuilder,
    values: list[ir.Value],
    combine: Callable[[list[ir.Value], list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Combine the lower with the upper half of parallel vectors until one lane is left."""
    lanes = values[0].type.count
    while lanes > 1:
        half = lanes // 2
        lower = [b.shuffle(v, range(half)) for v in values]
        upper = [b.shuffle(v, range(half, lanes)) for v in values]
        values, lanes = combine(lower, upper), half
    return [b.extract(v, 0) for v in values]


def _vector(name: str, v: Type, dtypes: tuple[str, ...]) -> Vec:
    if not isinstance(v, Vec) or not v.lanes or v.dtype not in dtypes:
        raise TypingError(f"{name}: expected a vector of {', '.join(dtypes)}, got {v}")
    return v


def _reduction(name: str, emit: Callable[..., ir.Value], dtypes: tuple[str, ...]) -> KernelFunction:
    def define(v: Type) -> Definition:
        dtype = _vector(name, v, dtypes).dtype

        def emit_call(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder)
            return _fold(b, [args[0]], lambda low, high: [emit(b, dtype, low[0], high[0])])[0]

        return scalar_type(dtype)(v), emit_call

    return make_intrinsic(name, define)


def _arg_reduction(name: str, beats: Callable[..., ir.Value], last: bool) -> KernelFunction:
    """Index operand of the lane whose value beats all others; `last` picks the highest index among equals."""

    def define(v: Type, index: Type) -> Definition:
        vector = _vector(name, v, arith.NUMBERS)
        dtype, lanes = vector.dtype, vector.lanes
        if not isinstance(index, Vec) or index.lanes != lanes or index.dtype in (*FLOATS, "bool"):
            raise TypingError(f"{name}: expected an integer vector of {lanes} indices, got {index}")
        signed = is_signed(index.dtype)

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder)

            def combine(low: list[ir.Value], high: list[ir.Value]) -> list[ir.Value]:
                wins, loses = beats(b, dtype, high[0], low[0]), beats(b, dtype, low[0], high[0])
                tie = b.not_(b.or_(wins, loses))
                order = b.icmp(">" if last else "<", high[1], low[1], signed)
                take = b.or_(wins, b.and_(tie, order))
                return [b.ir.select(take, new, old) for new, old in zip(high, low, strict=True)]

            return _fold(b, [args[0], args[1]], combine)[1]

        return scalar_type(index.dtype)(v, index), emit

    return make_intrinsic(name, define)


def _scan(name: str, back: bool, own: bool) -> KernelFunction:
    """Define a prefix sum over lanes (a suffix sum with ``back``), inclusive if ``own``."""

    def define(v: Type) -> Definition:
        vector = _vector(name, v, arith.NUMBERS)
        dtype, lanes = vector.dtype, vector.lanes

        def emit(builder: ir.IRBuilder, args: Values) -> ir.Value:
            b = VectorBuilder(builder)
            total, step = args[0], 1

            def moved(v: ir.Value, step: int) -> tuple[ir.Value, ir.Value]:
                away = step if back else -step
                inside = [ir.Constant(ir.IntType(1), 0 <= k + away < lanes) for k in range(lanes)]
                mask = ir.Constant(ir.VectorType(ir.IntType(1), lanes), inside)
                return b.shuffle(v, [(k + away) % lanes for k in range(lanes)]), mask

            while step < lanes:
                # Zeros shifted in would be an expansion, which is slow on some CPUs; this is a masked addition.
                other, mask = moved(total, step)
                total, step = builder.select(mask, arith.emit_add(b, dtype, total, other), total), 2 * step
            if own:
                return total
            other, mask = moved(total, 1)
            return b.select(mask, other, 0)

        return v(v), emit

    return make_intrinsic(name, define)


def _logical(operation: str) -> Callable[..., ir.Value]:
    return lambda b, dtype, x, y: getattr(b, operation)(x, y)


reduce_add = _reduction("reduce_add", arith.emit_add, arith.NUMBERS)
reduce_mul = _reduction("reduce_mul", arith.emit_mul, arith.NUMBERS)
reduce_max = _reduction("reduce_max", arith.emit_max, (*arith.NUMBERS, "bool"))
reduce_min = _reduction("reduce_min", arith.emit_min, (*arith.NUMBERS, "bool"))
reduce_first_greater = _reduction("reduce_first_greater", arith.emit_first_greater, FLOATS)
reduce_and = _reduction("reduce_and", _logical("and_"), ("bool",))
reduce_or = _reduction("reduce_or", _logical("or_"), ("bool",))
reduce_argmax = _arg_reduction("reduce_argmax", arith.extreme_comparison(">"), last=False)
reduce_argmax_last = _arg_reduction("reduce_argmax_last", arith.extreme_comparison(">"), last=True)
reduce_argmin = _arg_reduction("reduce_argmin", arith.extreme_comparison("<"), last=False)
reduce_argmin_last = _arg_reduction("reduce_argmin_last", arith.extreme_comparison("<"), last=True)
scan_add = _scan("scan_add", back=False, own=True)
scan_add_back = _scan("scan_add_back", back=True, own=True)
scan_add_before = _scan("scan_add_before", back=False, own=False)
scan_add_behind = _scan("scan_add_behind", back=True, own=False)
