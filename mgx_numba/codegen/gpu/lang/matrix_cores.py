"""MMA intrinsics of AMD matrix cores; `codegen.gpu.matrix_tiles` documents the fragment layouts."""

from __future__ import annotations

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import Definition, KernelFunction, Values, Vec, make_intrinsic
from ...toolchain.numba_core import TypingError, types
from ..matrix_tiles import TILES, MatrixTile
from .threads import call, expect, target

_I1, _I32 = ir.IntType(1), ir.IntType(32)
_REGISTERS = {
    "float16": ir.HalfType(), "bfloat16": ir.IntType(16), "float32": ir.FloatType(), "float64": ir.DoubleType(),
}  # fmt: skip
"""Element types of the intrinsics' operands; 8-bit operands are words."""


def _operand(tile: MatrixTile, dtype: str) -> ir.Type:
    """Return the LLVM type of an operand: a vector of elements, or a scalar if a lane holds one register."""
    if itemsize(dtype) > 1:
        element, count = _REGISTERS[dtype], tile.held
    elif tile.family == "mfma":
        element, count = ir.IntType(8 * tile.held), 1
    else:
        element, count = _I32, tile.held // 4
    return element if count == 1 else ir.VectorType(element, count)


def _of_sums(tile: MatrixTile) -> ir.Type:
    element = _I32 if tile.accumulator == "int32" else _REGISTERS[tile.accumulator]
    return ir.VectorType(element, tile.sums)


def _bits(builder: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Return a vector bitcast to an intrinsic's operand type; llvmlite cannot bitcast a one-element vector to its
    element."""
    if isinstance(value.type, ir.VectorType) and value.type.count == 1 and not isinstance(kind, ir.VectorType):
        return builder.bitcast(builder.extract_element(value, _I32(0)), kind)
    return builder.bitcast(value, kind)


def _full_name(tile: MatrixTile) -> str:
    """Return the LLVM intrinsic's name; a wmma name ends with its register types."""
    if tile.family == "mfma":
        return f"llvm.amdgcn.mfma.{tile.intrinsic}"
    ends = []
    for kind in (_of_sums(tile), _operand(tile, tile.a)):
        letter = "f" if isinstance(kind.element, (ir.HalfType, ir.FloatType)) else "i"
        bits = 16 if isinstance(kind.element, ir.HalfType) else getattr(kind.element, "width", 32)
        ends.append(f"v{kind.count}{letter}{bits}")
    return f"llvm.amdgcn.wmma.{tile.intrinsic}.{'.'.join(ends)}"


def _product(tile: MatrixTile) -> KernelFunction:
    expected = (Vec(tile.accumulator, tile.sums), Vec(tile.a, tile.held), Vec(tile.b, tile.held))

    def define(sums: types.Type, a: types.Type, b: types.Type) -> Definition:
        if (sums, a, b) != expected:
            raise TypingError(f"{tile.name}: expected {expected}, got {sums}, {a} and {b}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            expect(tile.name, target().name in tile.architectures)
            left, right = (_bits(builder, v, _operand(tile, t)) for v, t in zip(values[1:], (tile.a, tile.b)))
            if tile.family == "mfma":
                operands = [left, right, values[0], *[_I32(0)] * 3]  # no part of an operand goes to other lanes
            elif tile.accumulator == "int32":
                signs = [_I1(dtype == "int8") for dtype in (tile.a, tile.b)]
                operands = [signs[0], left, signs[1], right, values[0], _I1(0)]  # sums wrap
            else:
                operands = [left, right, values[0]]
            return call(builder, _full_name(tile), values[0].type, operands)

        return expected[0](*expected), emit

    return make_intrinsic(tile.name, define)


for _tile in TILES:
    globals()[_tile.name] = _product(_tile)
