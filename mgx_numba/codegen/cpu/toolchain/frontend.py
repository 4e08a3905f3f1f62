"""Lower a kernel's Python function to LLVM IR text with the entry point that the CPU's executor calls.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from llvmlite import ir

from ...lang.target import with_features
from ...toolchain.frontend import Refused, write_function
from ...toolchain.ir_builder import KernelBuilder
from ...toolchain.numba_core import types
from .. import host

__all__ = ["Refused", "lower"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_UNROLLED_OPERATIONS = 160
"""Most operations in the copies of an unrolled body: epilogues of depthwise convolutions, of 8 pixels, have 50 to 120.
On Zen 5 these take 1.2 times as long in a loop, whose accumulators stay in memory. A higher limit only makes setup
loops longer."""
_ARGUMENTS = (types.CPointer(types.int64), types.int64, types.int64)


def lower(function: ast.FunctionDef, namespace: Mapping[str, object], symbol: str) -> str:
    """Return the LLVM IR of ``function(args, begin, end)``, exported as ``void symbol(i64*, i64, i64)``.

    A function annotated ``-> int`` returns an i64 instead.

    Raises:
        Refused: the function does not type or does not lower.
    """
    module = ir.Module(symbol)
    with host.target_machine() as machine:
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
    stored, returned = (types.void, ir.VoidType()) if function.returns is None else (types.int64, _I64)
    entry = ir.Function(module, ir.FunctionType(returned, [_I64.as_pointer(), _I64, _I64]), name=symbol)
    entry.attributes.add("nounwind")
    builder = KernelBuilder(entry.append_basic_block())
    with with_features(host.features()):
        arguments = list(zip(_ARGUMENTS, entry.args, strict=True))
        write_function(builder, function, namespace, arguments, stored, _UNROLLED_OPERATIONS, hoists=True)
    _call_through_table(module)
    text = str(module)
    for written in module.functions:  # break the cycles of references, so that no collector has to find the IR
        for block in written.blocks:
            block.instructions.clear()
        written.blocks.clear()
    return text


def _call_through_table(module: ir.Module) -> None:
    """Make calls of the C library go through the object's own address table.

    The loader's memory manager keeps an object's sections within range of each other and reserves room for that table.
    It reserves none for the stubs that direct calls to functions out of range would need.
    """
    for function in module.functions:
        if function.is_declaration and not function.name.startswith("llvm."):
            function.attributes.add("nonlazybind")
    override = 7
    module.add_named_metadata("llvm.module.flags", [_I32(override), "RtLibUseGOT", _I32(1)])
