"""Numba's typing and lowering of the names and operators of kernels: signatures, and functions that emit LLVM IR.

Kernels call the same few hundred functions with the same types, so each look-up is cached per process. Numba's own
contexts load everything that Numba compiles (arrays, strings, linear algebra) before they first lower an operator,
which takes longer than a kernel. The contexts in this module know numbers, pointers and tuples. Intrinsics are typed
and lowered without Numba's registry.

Importing this module imports Numba.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

from .numba_core import (
    BaseContext,
    CPUContext,
    Intrinsic,
    NumbaError,
    builtins,
    create_error_model,
    load_implementations,
    templates,
    types,
)

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


class _Typing(BaseContext):
    """Numba's typing of built-in functions and operators."""

    def _load_builtins(self) -> None:
        self.install_registry(_builtins())


@functools.cache
def _builtins() -> templates.Registry:
    """Return the part of Numba's registry for numbers, pointers and tuples; the rest loads the modules it describes."""

    def own(template: type) -> bool:
        return any(base.__module__ == builtins.__name__ for base in template.__mro__)  # itself, or what it wraps

    found = templates.Registry()
    found.functions = list(filter(own, templates.builtin_registry.functions))
    found.globals = [
        (value, kind)
        for value, kind in templates.builtin_registry.globals
        if isinstance(kind, types.Function) and all(map(own, kind.templates))
    ]
    return found


class _Lowering(CPUContext):
    """Numba's lowering of built-in functions and operators on numbers, pointers and tuples."""

    def load_additional_registries(self) -> None:
        """Load the modules that register the implementations, with Numba's built-in ones."""
        load_implementations()


@functools.cache
def _typing() -> BaseContext:
    context = _Typing()
    context.refresh()
    return context


@functools.cache
def target() -> Any:
    """Return Numba's lowering context for CPUs; an integer division by zero gives a number, as in NumPy."""
    context = _Lowering(_typing(), "cpu")
    context.refresh()
    return context.subtarget(error_model=create_error_model("numpy", context))


@functools.cache
def _function(value: object) -> types.Type | None:
    return _typing()._lookup_global(value)  # `resolve_value_type` would import cffi and Numba's typed containers


def is_function(value: object) -> bool:
    """Return whether Numba can call a value."""
    return isinstance(value, Intrinsic) or isinstance(_function(value), types.Function)


@functools.cache
def signature(function: object, arguments: tuple[types.Type, ...]) -> Any:
    """Return the signature of an intrinsic or operator for arguments of these types, which may be literal types.

    Raises:
        NumbaError: no signature fits.
    """
    if isinstance(function, Intrinsic):
        return _defined(function, arguments)[0]
    return _function(function).get_call_type(_typing(), arguments, {})  # type: ignore[union-attr]


@functools.cache
def _defined(function: Intrinsic, arguments: tuple[types.Type, ...]) -> tuple[Any, Callable[..., Any]]:
    """Return the signature of an intrinsic, and ``lower(context, builder, signature, values) -> value``.

    As in Numba, literal types and general types are tried, in the intrinsic's preferred order.
    """
    ways = [arguments, tuple(map(types.unliteral, arguments))]
    refusal: NumbaError | None = None
    for given in ways if function._prefer_literal else reversed(ways):
        try:
            found = function._defn(_typing(), *given)
        except NumbaError as error:
            refusal = refusal or error
            continue
        if found is not None:
            return found
    raise refusal or NumbaError(f"{function} is not defined for {arguments}")


@functools.cache
def implementation(function: object, arguments: tuple[types.Type, ...], chosen: object) -> Any:
    """Return ``write(builder, values) -> value`` for the signature that `signature` chose for these argument types."""
    if isinstance(function, Intrinsic):
        lower = _defined(function, arguments)[1]
        return lambda builder, values: lower(target(), builder, chosen, values)
    return target().get_function(_function(function), chosen)


@functools.cache
def unified(first: types.Type, second: types.Type) -> types.Type | None:
    """Return the common type of a value that may have either type; None if there is none."""
    return first if first == second else _typing().unify_types(first, second)


def literal(value: int | float | bool | str) -> types.Type:
    """Return the type of a constant; types of integers, bools and strings include the value.

    Raises:
        TypeError: an integer of more than 64 bits.
    """
    if isinstance(value, float):
        return types.float64
    found: types.Type = types.literal(value)
    return found
