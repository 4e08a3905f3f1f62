"""Tagged words in device memory, by which blocks pass values without further synchronisation.

A 64-bit word holds a float32 and, above it, a tag. It is written and read atomically (PTX ISA, "Memory Consistency
Model": scalar accesses are single-copy atomic), so a reader that sees the tag sees the value.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.vector import Definition, Values, describe, kernel_function, pointer_dtype, value_type
from ...toolchain.numba_core import TypingError, types
from .threads import effect, expect, target, vector_of

_I32, _F32 = ir.IntType(32), ir.FloatType()
_WORDS = 4  # two loads of 16 bytes, a thread's widest
_STORE = "{\n.reg .b64 word;\nmov.b64 word, {$1, $2};\nst.relaxed.gpu.b64 [$0], word;\n}"
_LOAD = """{
.reg .pred early;
.reg .b64 a, b, c, d;
.reg .b32 s, t, u, v;
again:
ld.relaxed.gpu.v2.b64 {a, b}, [$4];
ld.relaxed.gpu.v2.b64 {c, d}, [$4+16];
mov.b64 {$0, s}, a;
mov.b64 {$1, t}, b;
mov.b64 {$2, u}, c;
mov.b64 {$3, v}, d;
min.s32 s, s, t;
min.s32 u, u, v;
min.s32 s, s, u;
setp.lt.s32 early, s, $5;
@early bra again;
}"""


def _check(name: str, p: types.Type) -> None:
    if pointer_dtype(name, p) != "int64":
        raise TypingError(f"{name}: values with tags are words of int64, got {p}")


@kernel_function
def tagged_store(p: types.Type, i: types.Type, x: types.Type, tag: types.Type) -> Definition:
    _check("tagged_store", p)
    if describe("tagged_store", x) != ("float32", 0):
        raise TypingError(f"tagged_store: expected a float32, got {x}")

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        expect("tagged_store", target().nvidia)
        operands = [builder.gep(values[0], [values[1]]), values[2], builder.trunc(values[3], _I32)]
        effect(builder, _STORE, "l,f,r", operands)

    return types.void(p, types.int64, x, types.int64), emit


@kernel_function
def tagged_load4(p: types.Type, i: types.Type, tag: types.Type) -> Definition:
    _check("tagged_load4", p)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        expect("tagged_load4", target().nvidia)
        operands = [builder.gep(values[0], [values[1]]), builder.trunc(values[2], _I32)]
        kind = ir.LiteralStructType([_F32] * _WORDS)
        found = effect(builder, _LOAD, "=&f,=&f,=&f,=&f,l,r", operands, kind)
        return vector_of(builder, [builder.extract_value(found, k) for k in range(_WORDS)])

    return value_type("float32", _WORDS)(p, types.int64, types.int64), emit
