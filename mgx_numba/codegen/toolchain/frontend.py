"""Numba as a front end only: types a Python function and lowers it to LLVM IR.

Importing this module imports Numba.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, compiler, errors, types
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from .numba_passes import KernelPipeline

__all__ = ["Refused", "call_inlined", "typed_module"]


class Refused(Exception):
    """Numba does not accept the function; the text says why and on which line."""


class _Collector(JITCodeLibrary):
    """A code library that keeps the IR modules given to it and compiles nothing."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.modules: list[ir.Module] = []

    def add_ir_module(self, ir_module: ir.Module) -> None:
        self.modules.append(ir_module)


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


def call_inlined(
    module: ir.Module, builder: ir.IRBuilder, body: ir.Function, arguments: Sequence[ir.Value]
) -> ir.AllocaInstr:
    """Call what `typed_module` gave and let LLVM inline it; the place of its result. Nothing reads its status."""
    result = cgutils.alloca_once(builder, body.args[0].type.pointee)
    exception = cgutils.alloca_once(builder, body.args[1].type.pointee)
    builder.call(body, [result, exception, *arguments])
    body.linkage = "internal"
    body.attributes.add("alwaysinline")
    for value in module.global_values:
        if isinstance(value, ir.GlobalVariable) and value.linkage == "common":  # Numba's environment, unused here
            value.linkage = "internal"
    return result


def _with_line(message: str, location: Any) -> str:
    if location is None or f"line {location.line}" in message:
        return message
    return f"{message}\n{location.strformat()}"
