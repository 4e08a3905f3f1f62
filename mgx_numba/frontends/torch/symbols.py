"""Symbolic lengths of PyTorch's graphs: expressions become int64 instructions over the lengths of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from sympy import Expr
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ...core.shape import UNBOUNDED, DynamicDimension, Shape
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder

Scalar: TypeAlias = Instruction | int | float
"""An int64 or float64 scalar instruction, or its value."""
_UNLIMITED = 1 << 40
"""Upper ends from here on stand for no limit: PyTorch writes them as the largest int64 less some."""


class Symbols:
    """The symbols of one graph, and the instruction that gives each its value.

    A symbol is the length of an axis of an input where it can be. A symbol that follows from data is the length of an
    axis of a value, or a value. A symbol that neither has is an input of its own.
    """

    def __init__(self, g: AtenBuilder, ranges: Mapping[Expr, ValueRanges]) -> None:
        """Set up no symbols; ``ranges`` are those of symbols that differ from PyTorch's own."""
        self._g = g
        self._ranges = ranges
        self._sources: dict[Expr, Instruction] = {}
        self._known: dict[Expr, Scalar] = {}
        self._waiting: dict[object, str] = {}
        self._indirect: list[tuple[Expr, Instruction, int]] = []

    @staticmethod
    def is_symbolic(value: object) -> bool:
        """Return whether a value is a symbolic number, or a number in the place of one."""
        return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))

    def number(self, value: torch.SymInt | torch.SymFloat, x: Instruction) -> None:
        """Note that a symbol is the one element of ``x``."""
        type = Type.int64_type if isinstance(value, torch.SymInt) else Type.double_type
        self._sources.setdefault(value.node.expr, self._g.cast(self._g.reshape(x, ()), type))

    def learn(self, x: Instruction, lens: Sequence[object]) -> None:
        """Note the symbols among the lengths of an input, or of a value whose lengths follow from data."""
        for axis, n in enumerate(lens):
            if isinstance(n, torch.SymInt):
                expression = n.node.expr
                if expression.is_Symbol and expression not in self._sources:
                    self._sources[expression] = self._length(x, axis)
                elif len(expression.free_symbols) == 1:
                    self._indirect.append((expression, x, axis))

    def _solved(self, symbol: Expr) -> Instruction | None:
        """Return a symbol that an input's length determines by a factor and a summand; None if there is none."""
        g = self._g
        for expression, x, axis in self._indirect:
            factor, summand = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
            if factor.is_Integer and summand.is_Integer and factor > 0 and expression == factor * symbol + summand:
                moved = self._pair("sub", self._length(x, axis), int(summand))
                return g.pointwise("div", moved, g.literal(int(factor), Type.int64_type))
        return None

    def _length(self, x: Instruction, axis: int) -> Instruction:
        one = self._g.op("dimensions_of", x, start=axis, end=axis + 1)
        return self._g.squeeze(one, [0])

    def placeholder(self, name: str, value: torch.SymInt) -> object:
        """Return the value of an input that is a number: an input of the program only if nothing else gives it."""
        expression = value.node.expr
        if expression.is_Symbol:
            self._waiting.setdefault(expression, name)
        return value

    def dimension(self, n: int | torch.SymInt) -> DynamicDimension:
        """Return a length of a tensor as a range."""
        if not isinstance(n, torch.SymInt):
            return DynamicDimension(int(n), int(n))
        expression = n.node.expr
        if expression.is_number:
            return DynamicDimension(int(expression), int(expression))
        known = {s: self._ranges.get(s) or n.node.shape_env.var_to_range[s] for s in expression.free_symbols}
        found = bound_sympy(expression, known)
        low, high = _integer(found.lower, 0), _integer(found.upper, UNBOUNDED)
        low = max(0, low)
        return DynamicDimension(low, max(low, UNBOUNDED if high > _UNLIMITED else high), symbol=str(expression))

    def instruction(self, value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Scalar:
        """Return a symbolic number as an int64 or float64 scalar instruction, or as a number if it is one."""
        return self._made(value.node.expr)

    def _made(self, expression: Expr) -> Scalar:
        if expression.is_number:
            return int(expression) if expression.is_integer and not expression.is_Float else float(expression)
        if expression not in self._known:
            self._known[expression] = made = self._computed(expression)
            if isinstance(made, Instruction):
                self._g.lengths.add(made)
        return self._known[expression]

    def _computed(self, expression: Expr) -> Scalar:
        g = self._g
        if expression.is_Symbol:
            found = self._sources.get(expression)
            if found is None:
                found = self._solved(expression)
            if found is None and expression in self._waiting:
                name = self._waiting[expression]
                found = self._sources[expression] = g.module.add_parameter(name, Shape(Type.int64_type))
            if found is None:
                raise UnsupportedError(f"length {expression} follows from data, and is no length of an input")
            return found
        kind = type(expression).__name__
        parts = [self._made(a) for a in expression.args]
        if kind in _FOLDED:
            result = parts[0]
            for part in parts[1:]:
                result = self._pair(_FOLDED[kind], result, part)
            return result
        if kind in _PAIRS and len(parts) == 2:
            return self._pair(_PAIRS[kind], *parts)
        if kind in ("Pow", "PowByNatural") and isinstance(parts[1], int) and parts[1] >= 1:
            result = parts[0]
            for _ in range(parts[1] - 1):
                result = self._pair("mul", result, parts[0])
            return result
        if kind in _OF_FLOATS:
            return g.pointwise(_OF_FLOATS[kind], *map(self._float, parts))
        if kind in ("Pow", "PowByNatural") and parts[1] == -1:
            raise UnsupportedError(f"the quotient in length {expression} is not supported")
        if kind == "ModularIndexing" and len(parts) == 3:
            return self._pair("mod", self._pair("div", parts[0], parts[1]), parts[2])
        if kind == "ToFloat":
            return self._float(parts[0])
        if kind in _ROUNDED or kind == "TruncToInt":
            wide = self._float(parts[0])
            return g.cast(g.pointwise(_ROUNDED[kind], wide) if kind in _ROUNDED else wide, Type.int64_type)
        if kind == "Identity":
            return parts[0]
        raise UnsupportedError(f"{kind} in length {expression} is not supported")

    def _float(self, x: Scalar) -> Instruction:
        return self._g.value(x, Type.double_type)

    def _pair(self, op: str, a: Scalar, b: Scalar) -> Instruction:
        floats = [
            x.shape.type is Type.double_type if isinstance(x, Instruction) else isinstance(x, float) for x in (a, b)
        ]
        type = Type.double_type if any(floats) else Type.int64_type
        return self._g.pointwise(op, self._g.value(a, type), self._g.value(b, type))


_FOLDED = {"Add": "add", "Mul": "mul", "Max": "max", "Min": "min"}
"""Operator of each associative function of SymPy."""
_PAIRS = {
    "FloorDiv": "div",
    "CleanDiv": "div",
    "Mod": "mod",
    "PythonMod": "mod",
}
"""Operator of each function of two lengths, none of which is negative."""
_OF_FLOATS = {
    "IntTrueDiv": "div",
    "FloatTrueDiv": "div",
    "FloatPow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_log2": "log2",
    "OpaqueUnaryFn_exp": "exp",
}
"""Operator of each function that has float64 numbers as arguments and as its value."""
_ROUNDED = {"FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "nearbyint"}
"""Operator of each function from a float64 number to a length."""


def _integer(bound: Expr, otherwise: int) -> int:
    try:
        value = float(bound)
    except (TypeError, ValueError):
        return otherwise
    return int(bound) if math.isfinite(value) else otherwise


def hint(length: int | torch.SymInt) -> int | None:
    """Return a length, or the example of a symbolic one, without a guard on it; None if it has no example."""
    if not isinstance(length, torch.SymInt):
        return int(length)
    return int(length.node.hint) if length.node.has_hint() else None
