"""A kernel's Python function as LLVM IR text with the entry that the CPU's executor calls.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.core import types

from ...lang.target import with_features
from ...toolchain.frontend import Refused, write_function
from .. import host

__all__ = ["Refused", "lower"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_UNROLLED_OPERATIONS = 160
"""Operations in the copies of a body: epilogues of depthwise convolutions, of 8 pixels, have 50 to 120. On Zen 5 they
take 1.2 times as long in a loop, whose sums stay in memory. More of setup loops only makes code longer."""
_ARGUMENTS = (types.CPointer(types.int64), types.int64, types.int64)


def lower(function: ast.FunctionDef, namespace: Mapping[str, Any], symbol: str) -> str:
    """LLVM IR of ``function(args, begin, end)``, exported as ``void symbol(i64*, i64, i64)``.

    A function that is annotated ``-> int`` returns an i64 instead.

    Raises:
        Refused: the function does not type or does not lower.
    """
    module = ir.Module(symbol)
    with host.target_machine() as machine:
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
    stored, returned = (types.void, ir.VoidType()) if function.returns is None else (types.int64, _I64)
    entry = ir.Function(module, ir.FunctionType(returned, [_I64.as_pointer(), _I64, _I64]), name=symbol)
    entry.attributes.add("nounwind")
    builder = ir.IRBuilder(entry.append_basic_block())
    with with_features(host.features()):
        arguments = list(zip(_ARGUMENTS, entry.args, strict=True))
        write_function(builder, function, namespace, arguments, stored, _UNROLLED_OPERATIONS)
    _call_through_table(module)
    return str(module)


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
