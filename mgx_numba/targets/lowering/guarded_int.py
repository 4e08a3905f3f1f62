"""Integers of which all that is done with them is noted: sums and products as such, anything else as a *guard*, a
question whose answer has to be the same for other integers.

Unlike `graph.traced_int`, whose numbers are integers and so may be taken for plain ones unseen, these are none: Python
asks them for a number before it can use one, and that is a guard, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Event", "GuardedInt", "LengthTrace", "UntraceableError"]

Function = Callable[[int, int], Any]
Event = tuple[Function | None, int, int]
"""A function and the places of two values: what it gives is a value of its own, or the answer to a question. None: the
first number is the value."""


class UntraceableError(TypeError):
    """Something was done with a guarded integer that cannot be noted."""


class LengthTrace:
    """What one computation does with its integers, in order.

    Attributes:
        symbols: the integers that it is given; their values have the first places.
        values: of all places.
        events: computed values, which get the next places, and questions with their answers; a computed value has the
            answer None.
    """

    def __init__(self, given: Sequence[int]) -> None:
        self.values = list(given)
        self.symbols = [GuardedInt(self, place) for place in range(len(self.values))]
        self.events: list[tuple[Event, Any]] = []
        self._places: dict[Event, int] = {}
        self._asked: dict[Event, Any] = {}

    def compute(self, function: Function, a: Any, b: Any) -> GuardedInt:
        """The result of an operation on two integers, guarded or not."""
        return GuardedInt(self, self._value(function, self._place(a), self._place(b)))

    def ask(self, question: Function, a: Any, b: Any) -> Any:
        """The answer to a question about two integers, which becomes a guard."""
        event = question, self._place(a), self._place(b)
        if event not in self._asked:
            answer = question(self.values[event[1]], self.values[event[2]])
            self._asked[event] = answer
            self.events.append((event, answer))
        return self._asked[event]

    def _value(self, function: Function | None, a: int, b: int) -> int:
        event = function, a, b
        place = self._places.get(event)
        if place is None:
            value = a if function is None else function(self.values[a], self.values[b])
            place = self._places[event] = len(self.values)
            self.values.append(value)
            self.events.append((event, None))
        return place

    def _place(self, number: Any) -> int:
        if isinstance(number, GuardedInt):
            if number.trace is not self:
                raise UntraceableError("an integer of another trace")
            return number.place
        return self._value(None, int(number), 0)


class GuardedInt:
    """An integer of a `LengthTrace`, the value of a place."""

    __slots__ = ("place", "trace")

    def __init__(self, trace: LengthTrace, place: int) -> None:
        self.trace = trace
        self.place = place

    def __index__(self) -> int:
        number: int = self.trace.ask(_itself, self, 0)
        return number

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(self.trace.ask(operator.ne, self, 0))

    def __neg__(self) -> GuardedInt:
        return self.trace.compute(operator.sub, 0, self)

    def __pos__(self) -> GuardedInt:
        return self

    def __abs__(self) -> GuardedInt:
        return self.trace.compute(_magnitude, self, 0)

    def __divmod__(self, other: int) -> tuple[GuardedInt, GuardedInt]:
        note = self.trace.compute
        return note(operator.floordiv, self, other), note(operator.mod, self, other)

    def bit_length(self) -> GuardedInt:
        """`int.bit_length`."""
        return self.trace.compute(_bits, self, 0)

    def __str__(self) -> str:
        return str(int(self))

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(int(self), how)

    def __hash__(self) -> int:
        raise UntraceableError("a guarded integer is no key: what is kept under it would be found for another one")


def _itself(a: int, b: int) -> int:
    return a


def _magnitude(a: int, b: int) -> int:
    return abs(a)


def _bits(a: int, b: int) -> int:
    return a.bit_length()


def _noted(function: Function, reflected: bool, asks: bool) -> Callable[[GuardedInt, Any], Any]:
    def method(self: GuardedInt, other: Any) -> Any:
        if not isinstance(other, (int, GuardedInt)):
            return NotImplemented
        note = self.trace.ask if asks else self.trace.compute
        return note(function, other, self) if reflected else note(function, self, other)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift"):
    setattr(GuardedInt, f"__{_name}__", _noted(getattr(operator, _name), False, False))
    setattr(GuardedInt, f"__r{_name}__", _noted(getattr(operator, _name), True, False))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(GuardedInt, f"__{_name}__", _noted(getattr(operator, _name), False, True))
