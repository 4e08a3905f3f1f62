"""What Numba knows of the names and operators of kernels: signatures for types, and what writes their LLVM IR.

Kernels call the same few hundred functions with the same types again and again, so each is asked for once in a process.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.core.callconv import create_error_model
from numba.core.registry import cpu_target

__all__ = [
    "BINARY",
    "COMPARISONS",
    "UNARY",
    "implementation",
    "is_function",
    "literal",
    "signature",
    "target",
    "unified",
]

BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
UNARY: dict[type[ast.unaryop], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
COMPARISONS: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@functools.cache
def target() -> Any:
    """Numba's context of lowering for CPUs, whose integer divisions by zero give a number, as NumPy's do."""
    context = cpu_target.target_context
    return context.subtarget(error_model=create_error_model("numpy", context))


@functools.cache
def _function(value: Any) -> types.Type | None:
    context = cpu_target.typing_context
    try:
        return context.resolve_value_type(value)
    except ValueError:  # as yet: it was registered since Numba looked
        context.refresh()
    try:
        return context.resolve_value_type(value)
    except ValueError:
        return None


def is_function(value: Any) -> bool:
    """Whether Numba knows a value as something that can be called."""
    return isinstance(_function(value), types.Function)


@functools.cache
def signature(function: Any, arguments: tuple[types.Type, ...]) -> Any:
    """The signature of an intrinsic or operator for arguments of these types; they may be literal ones.

    Raises:
        NumbaError: there is none.
    """
    return _function(function).get_call_type(cpu_target.typing_context, arguments, {})  # type: ignore[union-attr]


@functools.cache
def implementation(function: Any, chosen: Any) -> Any:
    """``write(builder, values) -> value`` for a signature that `signature` gave."""
    return target().get_function(_function(function), chosen)


@functools.cache
def unified(first: types.Type, second: types.Type) -> types.Type | None:
    """The type that a value has which may be of either type; None if there is none."""
    return first if first == second else cpu_target.typing_context.unify_types(first, second)


def literal(value: int | float | bool | str) -> types.Type:
    """The type of a constant: of integers, bools and strings it tells the value.

    Raises:
        TypeError: an integer of more than 64 bits.
    """
    if isinstance(value, float):
        return types.float64
    found: types.Type = types.literal(value)
    return found
