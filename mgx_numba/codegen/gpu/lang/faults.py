"""Report an index out of range from a kernel, see `codegen.launch.Mark`."""

from __future__ import annotations

from llvmlite import ir

from ...lang.vector import Definition, Values, kernel_function, pointer_dtype
from ...toolchain.numba_core import types

_I64 = ir.IntType(64)


@kernel_function
def note_fault(record: types.Type, step: types.Type, check: types.Type, index: types.Type) -> Definition:
    pointer_dtype("note_fault", record)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        place, number, *rest = values
        before = builder.cmpxchg(place, _I64(0), number, "monotonic", "monotonic")
        with builder.if_then(builder.extract_value(before, 1)):
            for k, value in enumerate(rest, 1):
                builder.store(value, builder.gep(place, [_I64(k)]))

    return types.void(record, types.int64, types.int64, types.int64), emit
