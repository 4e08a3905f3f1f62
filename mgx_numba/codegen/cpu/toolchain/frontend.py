"""A kernel's Python function as LLVM IR text with the entry that the CPU's executor calls.

Importing this module imports Numba.
"""

from __future__ import annotations

import types as python_types

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock

from ...lang.target import with_features
from ...toolchain.frontend import Refused, call_inlined, typed_module
from .. import host

__all__ = ["Refused", "lower"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ARGUMENTS = (types.CPointer(types.int64), types.int64, types.int64)


@global_compiler_lock
def lower(function: python_types.FunctionType, symbol: str) -> str:
    """LLVM IR of ``function(args, begin, end)``, exported as ``void symbol(i64*, i64, i64)``.

    A function that is annotated ``-> int`` returns an i64 instead.

    Raises:
        Refused: the function does not type or does not lower.
    """
    returned = types.int64 if "return" in function.__annotations__ else types.void
    with with_features(host.features()):
        module, body = typed_module(function, symbol, _ARGUMENTS, returned)
    _add_entry(module, body, symbol)
    _call_through_table(module)
    return cgutils.normalize_ir_text(str(module))


def _add_entry(module: ir.Module, body: ir.Function, symbol: str) -> None:
    """Export the kernel ABI around Numba's calling convention."""
    stored = body.args[0].type.pointee
    returned = _I64 if stored == _I64 else ir.VoidType()
    entry = ir.Function(module, ir.FunctionType(returned, [_I64.as_pointer(), _I64, _I64]), name=symbol)
    entry.attributes.add("nounwind")
    builder = ir.IRBuilder(entry.append_basic_block())
    result = call_inlined(module, builder, body, entry.args)
    if returned == _I64:
        builder.ret(builder.load(result))
    else:
        builder.ret_void()


def _call_through_table(module: ir.Module) -> None:
    """Call the C library through the object's own address table.

    The loader's memory manager, which keeps an object's sections within reach of each other, reserves room
    for that table, but not for the stubs that direct calls to functions out of reach would need.
    """
    for function in module.functions:
        if function.is_declaration and not function.name.startswith("llvm."):
            function.attributes.add("nonlazybind")
    override = 7
    module.add_named_metadata("llvm.module.flags", [_I32(override), "RtLibUseGOT", _I32(1)])
