"""Warp-level MMA on NVIDIA tensor cores (sm_75 and above).

In 32-bit words, fragments of all types have one layout. With g = lane // 4 and c = lane % 4: ``a`` holds words (row g,
word c), (g + 8, c), (g, c + 4), (g + 8, c + 4) of 16 rows of 8 words; ``b`` words c and c + 4 of column g; accumulators
rows g and g + 8 of columns 2 c and 2 c + 1 (PTX ISA, "Matrix fragments for mma.m16n8k16", k8, k32). sm_75 has smaller
instructions: m16n8k8 takes half of K, m8n8k16 half of the rows, too. `codegen.gpu.products` has types and names.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import Definition, KernelFunction, Values, Vec, kernel_function, make_intrinsic, pointer_type
from ...toolchain.numba_core import TypingError, types
from ..products import PRODUCTS, Product
from .threads import call, elements, expect, target, vector_of

_I32, _F32 = ir.IntType(32), ir.FloatType()
_A, _B = Vec("int32", 4), Vec("int32", 2)
_INTRINSICS = {
    "f16.f16": "m16n8k16.row.col.f32.f32",
    "bf16.bf16": "m16n8k16.row.col.bf16",
    "tf32.tf32": "m16n8k8.row.col.tf32",
    "s8.s8": "m16n8k32.row.col.s8",
    "u8.u8": "m16n8k32.row.col.u8",
    "s8.u8": "m16n8k32.row.col.s8.u8",
    "u8.s8": "m16n8k32.row.col.u8.s8",
    "e4m3.e4m3": "m16n8k32.row.col.f32.e4m3.e4m3.f32",
    "e5m2.e5m2": "m16n8k32.row.col.f32.e5m2.e5m2.f32",
}
"""LLVM intrinsic names by operand types, without the common prefix (NVPTX usage, "mma")."""
_SMALLER = {"f16.f16": "m16n8k8.row.col.f32.f32"} | {
    f"{a}.{b}": f"m8n8k16.row.col.{a}" + f".{b}" * (a != b) for a in ("s8", "u8") for b in ("s8", "u8")
}
"""The same below compute capability `_WHOLE_FROM`."""
_WHOLE_FROM = (8, 0)  # PTX ISA, "mma", target ISA notes
_EVERY = (0, 1, 2, 3)  # four words, and four sums of a thread
_Steps = tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]
_WHOLE: _Steps = ((_EVERY, (0, 1), _EVERY),)
HALVES: _Steps = (((0, 1), (0,), _EVERY), ((2, 3), (1,), _EVERY))
QUARTERS: _Steps = (((0,), (0,), (0, 1)), ((2,), (1,), (0, 1)), ((1,), (0,), (2, 3)), ((3,), (1,), (2, 3)))
"""Operands of each instruction of a product: words of ``a`` and ``b``, and accumulators."""


def _words(vector: ir.Value, builder: ir.IRBuilder, product: Product) -> list[ir.Value]:
    """Return an operand's words as instruction operands."""
    words = elements(builder, vector)
    if product.a == "float16":
        words = [builder.bitcast(word, ir.VectorType(ir.HalfType(), 2)) for word in words]
    return words


def _added(builder: ir.IRBuilder, product: Product, a: list, b: list, sums: list) -> list[ir.Value]:
    """Return the accumulators after the product."""
    if target().capability >= _WHOLE_FROM:
        name, steps = _INTRINSICS[product.kind], _WHOLE
    else:
        name, steps = _SMALLER[product.kind], HALVES if product.size == 2 else QUARTERS
    for left, right, own in steps:
        operands = [*(a[k] for k in left), *(b[k] for k in right), *(sums[k] for k in own)]
        result = ir.LiteralStructType([sums[0].type] * len(own))
        made = call(builder, f"llvm.nvvm.mma.{name}", result, operands)
        for k, at in enumerate(own):
            sums[at] = builder.extract_value(made, k)
    return sums


def _mma(name: str, product: Product) -> KernelFunction:
    held = Vec(product.accumulator, 4)

    def define(sums: types.Type, a: types.Type, b: types.Type) -> Definition:
        if (sums, a, b) != (held, _A, _B):
            raise TypingError(f"{name}: expected {held}, {_A} and {_B}, got {sums}, {a} and {b}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            expect(name, target().capability >= product.capability)
            left, right = (_words(v, builder, product) for v in values[1:])
            return vector_of(builder, _added(builder, product, left, right, elements(builder, values[0])))

        return held(held, _A, _B), emit

    return make_intrinsic(name, define)


def _seen_as(name: str, dtype: str, element: ir.Type) -> KernelFunction:
    def define(p: types.Type) -> Definition:
        if not isinstance(p, types.CPointer):
            raise TypingError(f"{name}: expected a pointer, got {p}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return builder.bitcast(values[0], element.as_pointer())

        return pointer_type(dtype)(p), emit

    return make_intrinsic(name, define)


def _join(count: int) -> KernelFunction:
    name = f"join{count}"

    def define(*parts: types.Type) -> Definition:
        first = parts[0]
        if not isinstance(first, Vec) or not first.lanes or set(parts) != {first}:
            raise TypingError(f"{name}: expected {count} vectors of one dtype and lane count, got {parts}")
        whole = Vec(first.dtype, count * first.lanes)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return vector_of(builder, [own for part in values for own in elements(builder, part)])

        return whole(*parts), emit

    return make_intrinsic(name, define, count)


@kernel_function
def pack_words(v: types.Type) -> Definition:
    if not isinstance(v, Vec) or itemsize(v.dtype) != 2 or v.lanes not in (2, 4, 8):
        raise TypingError(f"pack_words: expected pairs of 16-bit elements, got {v}")
    words = Vec("int32", v.lanes // 2)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return builder.bitcast(values[0], ir.VectorType(_I32, words.lanes))

    return words(v), emit


join2, join4 = _join(2), _join(4)
words_of = _seen_as("words_of", "int32", _I32)
floats_of = _seen_as("floats_of", "float32", _F32)

for _product in PRODUCTS.values():
    _name = f"mma_{_product.name}"
    globals()[_name] = _mma(_name, _product)
