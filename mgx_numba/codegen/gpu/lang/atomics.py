"""Atomic additions to device memory, by which threads add to one element in no fixed order."""

from __future__ import annotations

from llvmlite import ir

from ...lang.memory import scalar_dtype
from ...lang.vector import Definition, Values, kernel_function, pointer_dtype, scalar_type
from ...toolchain.numba_core import TypingError, types
from .threads import effect, target

_PTX = {
    "float32": ("f32", "f"), "float64": ("f64", "d"), "int32": ("s32", "r"), "uint32": ("u32", "r"),
    "int64": ("u64", "l"), "uint64": ("u64", "l"),
}  # fmt: skip
"""For each dtype PTX's type of ``red.add`` and the constraint of its register: PTX ISA, "red". Sums of 64-bit integers
have the same bits with and without a sign."""


@kernel_function
def atomic_add(p: types.Type, i: types.Type, x: types.Type) -> Definition:
    dtype = pointer_dtype("atomic_add", p)
    if dtype not in _PTX or scalar_dtype("atomic_add", x) != dtype:
        raise TypingError(f"atomic_add: expected a pointer to {', '.join(_PTX)} and a scalar of its type, got {p}, {x}")
    kind, register = _PTX[dtype]

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        place = builder.gep(values[0], [values[1]])
        if target().nvidia:
            text = f"red.relaxed.gpu.add.{kind} [$0], $1;"
            effect(builder, text, f"l,{register}", [place, values[2]])
        else:
            builder.atomic_rmw("fadd" if dtype.startswith("float") else "add", place, values[2], "monotonic")

    return types.void(p, types.int64, scalar_type(dtype)), emit
