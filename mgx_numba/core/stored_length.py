"""Symbolic lengths of plans that were read from a file: numbers of values, whose expressions are built on demand."""

from __future__ import annotations

from collections.abc import Callable

from .bounds import POINTS
from .polynomials import Dim, Length, Terms
from .scope import ExpressionSpace


class StoredLength(Dim):
    """A value of a plan's size program, whose expression is built when it is first needed.

    Runs never need the expression: native code evaluates the size program.

    Attributes:
        owner: the size program (`runtime.size_program.SizeProgram`).
        number: the value's number in it.
    """

    __slots__ = ("_expression", "_make", "number", "owner")

    def __init__(self, owner: object, number: int, make: Callable[[int], Length]) -> None:
        """Create a stored length; ``make(number)`` builds its expression."""
        self.owner = owner
        self.number = number
        self._make = make
        self._expression: Length | None = None
        self._text = None

    @property
    def expression(self) -> Length:
        """The expression, built on first access."""
        if self._expression is None:
            self._expression = self._make(self.number)
        return self._expression

    @property
    def terms(self) -> Terms:  # type: ignore[override]
        found = self.expression
        return found.terms if isinstance(found, Dim) else (((), found),)

    @property
    def low(self) -> int | None:  # type: ignore[override]
        found = self.expression
        return found.low if isinstance(found, Dim) else found

    @property
    def high(self) -> int | None:  # type: ignore[override]
        found = self.expression
        return found.high if isinstance(found, Dim) else found

    @property
    def divisor(self) -> int:  # type: ignore[override]
        found = self.expression
        return found.divisor if isinstance(found, Dim) else abs(found)

    @property
    def space(self) -> ExpressionSpace:  # type: ignore[override]
        found = self.expression
        assert isinstance(found, Dim)
        return found.space

    @property
    def at(self) -> tuple[int, ...]:  # type: ignore[override]
        found = self.expression
        return found.at if isinstance(found, Dim) else (found,) * len(POINTS)
