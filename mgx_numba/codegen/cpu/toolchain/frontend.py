"""Numba as a front end only: types a Python function and lowers it to LLVM IR text.

Importing this module imports Numba.
"""

from __future__ import annotations

import types as python_types
from typing import Any

from llvmlite import ir
from numba.core import cgutils, compiler, errors, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from .numba_passes import KernelPipeline

__all__ = ["Refused", "lower", "typed_module"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_ARGUMENTS = (types.CPointer(types.int64), types.int64, types.int64)


class Refused(Exception):
    """Numba does not accept the function; the text says why and on which line."""


class _Collector(JITCodeLibrary):
    """A code library that keeps the IR modules given to it and compiles nothing."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.modules: list[ir.Module] = []

    def add_ir_module(self, ir_module: ir.Module) -> None:
        self.modules.append(ir_module)


@global_compiler_lock
def lower(function: python_types.FunctionType, symbol: str) -> str:
    """LLVM IR of ``function(args, begin, end)``, exported as ``void symbol(i64*, i64, i64)``.

    A function that is annotated ``-> int`` returns an i64 instead.

    Raises:
        Refused: the function does not type or does not lower.
    """
    returned = types.int64 if "return" in function.__annotations__ else types.void
    module, body = typed_module(function, symbol, _ARGUMENTS, returned)
    _add_entry(module, body, symbol)
    _call_through_table(module)
    return cgutils.normalize_ir_text(str(module))


def typed_module(
    function: python_types.FunctionType, name: str, arguments: tuple[types.Type, ...], returned: types.Type
) -> tuple[ir.Module, ir.Function]:
    """The module that Numba makes of a function of these types, and in it the function of Numba's own convention:
    places of the result and of an exception that is never raised, then the arguments.

    The caller holds Numba's compiler lock.

    Raises:
        Refused: the function does not type or does not lower.
    """
    flags: Any = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.enable_pyobject = False
    flags.nrt = False
    flags.error_model = "numpy"
    target = cpu_target.target_context
    library = _Collector(target.codegen(), name)
    try:
        result = compiler.compile_extra(
            cpu_target.typing_context,
            target,
            function,
            arguments,
            returned,
            flags,
            {},
            library=library,
            pipeline_class=KernelPipeline,
        )
    except errors.NumbaError as error:
        raise Refused(_with_line(str(error), getattr(error, "loc", None))) from error
    except Exception as error:  # an intrinsic called with the wrong number of arguments, or failing in its lowering
        raise Refused(f"{type(error).__name__}: {error}") from error
    (module,) = library.modules
    return module, module.globals[result.fndesc.mangled_name]


def _with_line(message: str, location: Any) -> str:
    if location is None or f"line {location.line}" in message:
        return message
    return f"{message}\n{location.strformat()}"


def _add_entry(module: ir.Module, body: ir.Function, symbol: str) -> None:
    """Export the kernel ABI around Numba's calling convention, whose status nothing reads."""
    stored = body.args[0].type.pointee
    returned = _I64 if stored == _I64 else ir.VoidType()
    entry = ir.Function(module, ir.FunctionType(returned, [_I64.as_pointer(), _I64, _I64]), name=symbol)
    entry.attributes.add("nounwind")
    builder = ir.IRBuilder(entry.append_basic_block())
    result = cgutils.alloca_once(builder, stored)
    exception = cgutils.alloca_once(builder, body.args[1].type.pointee)
    builder.call(body, [result, exception, *entry.args])
    if returned == _I64:
        builder.ret(builder.load(result))
    else:
        builder.ret_void()
    body.linkage = "internal"
    body.attributes.add("alwaysinline")
    for value in module.global_values:
        if isinstance(value, ir.GlobalVariable) and value.linkage == "common":  # Numba's environment, unused here
            value.linkage = "internal"


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
