"""Integers that remember how they were computed, and what was asked of them.

A computation on them, such as passes over a program, so becomes a function: of other values of the same symbols, if
every question that was answered on the way has the same answer for these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Trace", "TracedInt"]

Function = Callable[[int, int], int]
Question = tuple[Callable[[int, int], bool], int, int]

_exact = int.__index__
"""The plain integer of one that notes what is done with it."""


class Trace:
    """The values of one traced computation, each once: symbols, constants, and results of operations on them.

    Attributes:
        lost: how often a number was asked to be a plain one or a float, of which nothing more is known.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._given: list[int] = []
        self._entries: list[tuple[Function | None, int, int]] = []
        self._known: dict[tuple[Any, int, int], int] = {}
        self._answers: dict[Question, bool] = {}

    def symbol(self, value: int) -> TracedInt:
        """A new symbol, numbered in the order of calls, which must come before all operations."""
        self._given.append(value)
        return TracedInt(self, self._number((None, -1, len(self._given))), value)

    def number(self, value: int) -> int:
        """Which value of the trace an integer is; a plain one is a constant."""
        if isinstance(value, TracedInt) and value.trace is self:
            return value.place
        return self._number((None, 0, _exact(value)))

    def compute(self, function: Function, a: int, b: int) -> TracedInt:
        """The result of an operation."""
        value = function(_exact(a), _exact(b))
        return TracedInt(self, self._number((function, self.number(a), self.number(b))), value)

    def ask(self, question: Callable[[int, int], bool], a: int, b: int) -> bool:
        """The answer to a question, which is remembered unless it is about one and the same value."""
        answer = question(_exact(a), _exact(b))
        first, second = self.number(a), self.number(b)
        if first != second:
            self._answers[question, first, second] = answer
        return answer

    def evaluate(self, symbols: Sequence[int]) -> list[int] | None:
        """All values of the trace for these values of its symbols; None if a question has another answer for them."""
        try:
            values = self._evaluated(symbols)
        except ArithmeticError:
            return None
        for (question, a, b), answer in self._answers.items():
            if question(values[a], values[b]) != answer:
                return None
        return values

    def values(self) -> list[int]:
        """All values of the trace as it was made."""
        return self._evaluated(self._given)

    def _evaluated(self, symbols: Sequence[int]) -> list[int]:
        values: list[int] = []
        for function, a, b in self._entries:
            if function is not None:
                values.append(function(values[a], values[b]))
            else:
                values.append(symbols[b - 1] if a else b)
        return values

    def _number(self, entry: tuple[Any, int, int]) -> int:
        place = self._known.get(entry)
        if place is None:
            place = self._known[entry] = len(self._entries)
            self._entries.append(entry)
        return place


class TracedInt(int):
    """An integer of a `Trace`: what Python computes from it is one, and what Python compares it with is noted.

    What is computed from it in C, or as a float, is a plain number: whoever traces a computation has to check it on
    other values.
    """

    trace: Trace
    place: int

    def __new__(cls, trace: Trace, place: int, value: int) -> TracedInt:
        made = super().__new__(cls, value)
        made.trace, made.place = trace, place
        return made

    __hash__ = int.__hash__

    def __index__(self) -> int:
        return self

    def __int__(self) -> int:
        self.trace.lost += 1
        return _exact(self)

    def __float__(self) -> float:
        self.trace.lost += 1
        return float(_exact(self))

    def __bool__(self) -> bool:
        return self.trace.ask(operator.ne, self, 0)

    def __neg__(self) -> int:
        return self.trace.compute(operator.sub, 0, self)

    def __pos__(self) -> int:
        return self

    def __abs__(self) -> int:
        return -self if self < 0 else self


def _divided(self: TracedInt, other: Any) -> Any:
    self.trace.lost += 1
    return NotImplemented if not isinstance(other, (int, float)) else _exact(self) / other


def _divides(self: TracedInt, other: Any) -> Any:
    self.trace.lost += 1
    return NotImplemented if not isinstance(other, (int, float)) else other / _exact(self)


def _computing(function: Function) -> Callable[[TracedInt, Any], Any]:
    def method(self: TracedInt, other: Any) -> Any:
        return self.trace.compute(function, self, other) if isinstance(other, int) else NotImplemented

    return method


def _reflected(function: Function) -> Callable[[TracedInt, Any], Any]:
    def method(self: TracedInt, other: Any) -> Any:
        return self.trace.compute(function, other, self) if isinstance(other, int) else NotImplemented

    return method


def _asking(question: Callable[[int, int], bool]) -> Callable[[TracedInt, Any], Any]:
    def method(self: TracedInt, other: Any) -> Any:
        return self.trace.ask(question, self, other) if isinstance(other, int) else NotImplemented

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _function = getattr(operator, _name)
    setattr(TracedInt, f"__{_name}__", _computing(_function))
    setattr(TracedInt, f"__r{_name}__", _reflected(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(TracedInt, f"__{_name}__", _asking(getattr(operator, _name)))
setattr(TracedInt, "__truediv__", _divided)  # noqa: B010  (int's own says that the result is a float)
setattr(TracedInt, "__rtruediv__", _divides)  # noqa: B010
