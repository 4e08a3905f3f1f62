"""Report an index out of range from a kernel, see `codegen.launch.Mark`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...lang.vector import make_intrinsic, pointer_dtype
from ...toolchain.numba_core import types

__all__ = ["note_fault"]

_I64 = ir.IntType(64)


def _define(record: types.Type, step: types.Type, check: types.Type, index: types.Type) -> Any:
    pointer_dtype("note_fault", record)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        place, number, *rest = values
        before = builder.cmpxchg(place, _I64(0), number, "monotonic", "monotonic")
        with builder.if_then(builder.extract_value(before, 1)):
            for k, value in enumerate(rest, 1):
                builder.store(value, builder.gep(place, [_I64(k)]))
        return context.get_dummy_value()

    return types.void(record, types.int64, types.int64, types.int64), lower


note_fault = make_intrinsic("note_fault", _define, 4)
