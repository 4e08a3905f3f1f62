"""The symbols of a program, and the questions that were asked of them. See `core.dim`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .bounds import AtomRanges, decided, facts_of
from .conditions import all_of, negate
from .expressions import evaluate, substitute, symbols_of
from .polynomials import Atom, Dim, Length, SymbolicLengthError, Terms, polynomial, range_of, single_atom

__all__ = [
    "Guard",
    "Scope",
]


class Guard(NamedTuple):
    """A question that ranges do not decide: ``condition`` is 1 where its answer is yes; ``place`` is who asked."""

    condition: Dim
    answer: bool
    place: str


class Scope:
    """The symbols of one compiled program, their example lengths, and the questions that were answered by these.

    Attributes:
        symbols: in the order in which they were made.
        samples: values of all symbols for which kernels are looked for (`codegen.alternatives`), besides the hints.
        guards: the questions that ranges did not decide, each once, in the order of asking.
        preferences: conditions that chose between right ways, with the answers, see `preferred`.
        interned: expressions by their terms, and ``atoms`` by their operation: equal ones are one object.
        usual: values of expressions for usual lengths, see `typical`.
    """

    def __init__(self) -> None:
        self.symbols: list[Dim] = []
        self.samples: list[dict[Dim, int]] = []
        self.guards: dict[Dim, Guard] = {}
        self.preferences: dict[Dim, bool] = {}
        self.usual: dict[Dim, int] = {}
        self._hints: dict[Atom, int] = {}
        self._values: dict[Dim, int] = {}
        self._closed = False
        self.interned: dict[Terms, Dim] = {}
        self.atoms: dict[Any, Atom] = {}
        self.sums: dict[tuple[Length, Length], Length] = {}
        """What was added: offsets and ranges of equal shapes are computed again and again."""
        self.lesser: dict[tuple[Length, Length], Length] = {}
        """For pairs that were compared the condition that the first one is less: 1, 0, or an expression."""
        self.products: dict[tuple[Length, Length], Length] = {}
        """What was multiplied: strides of equal shapes are computed again and again."""
        self.equal: dict[tuple[Length, Length], Length] = {}
        """For pairs that were compared the condition that they are equal."""
        self._implied: dict[Dim, bool | None] = {}
        self._equals: dict[Dim, Length] = {}
        self._ranges: tuple[dict[Dim, Guard], int, AtomRanges] | None = None
        self._cautious = False

    def clear(self) -> None:
        """Forget symbols, samples and questions."""
        interned, atoms = self.interned, self.atoms
        self.__init__()  # type: ignore[misc]
        self.interned, self.atoms = interned, atoms  # expressions of those symbols may still be in use

    def symbol(self, name: str, low: int = 0, high: int | None = None, hint: int | None = None) -> Dim:
        """Make a symbol for lengths from ``low`` to ``high`` (None: without end); ``hint`` is its example length."""
        atom = Atom("symbol", (), low, high, 1, self, name)
        made = atom.own = polynomial([((atom,), 1)])
        assert isinstance(made, Dim)
        self.symbols.append(made)
        self._hints[atom] = (low if high is None else min(max(low, 16), high)) if hint is None else hint
        return made

    def __reduce__(self) -> Any:
        """Symbols come first: the expressions of the rest are made of them."""
        symbols = [(s.terms[0][0][0].name, s.low, s.high, self._hints[s.terms[0][0][0]]) for s in self.symbols]
        state = {
            "samples": self.samples,
            "guards": self.guards,
            "preferences": self.preferences,
            "_closed": self._closed,
        }
        return _scope_of, (symbols,), state

    def __deepcopy__(self, memo: Any) -> Scope:
        return self

    def hints(self) -> dict[Dim, int]:
        """Return the example lengths of all symbols."""
        return {s: self._hints[s.terms[0][0][0]] for s in self.symbols}

    def value(self, length: Length) -> int:
        """Return an expression's value for the example lengths."""
        return evaluate(length, self._hints, self._values)

    def ask(self, condition: Dim) -> bool:
        """Answer a condition by the example lengths, and note it as a guard.

        Raises:
            SymbolicLengthError: the scope is closed.
        """
        known = self.answered(condition)
        if known is not None:
            return known
        if self._closed:
            raise SymbolicLengthError(f"whether {condition} is asked after the program was compiled")
        answer = bool(self.value(condition))
        self.guards[condition] = Guard(condition, answer, _asker())
        return answer

    def answered(self, condition: Dim) -> bool | None:
        """Return the answer that a guard gave, or that follows from guards; None if there is none."""
        if not self.guards:
            return None
        known = self.guards.get(condition)
        if known is not None:
            return known.answer
        if self._ranges is None or self._ranges[0] is not self.guards or self._ranges[1] != len(self.guards):
            facts: list[Terms] = []
            for guard in self.guards.values():
                facts += facts_of(guard.condition.terms, guard.answer, AtomRanges(facts))
            self._ranges, self._implied = (self.guards, len(self.guards), AtomRanges(facts)), {}
            self._equals = dict(filter(None, map(_replacement, self.guards.values())))
        if condition not in self._implied:
            plain = substitute(condition, self._equals)
            if isinstance(plain, Dim):
                known = self.guards.get(plain)
                self._implied[condition] = decided(plain.terms, self._ranges[2]) if known is None else known.answer
            else:
                self._implied[condition] = bool(plain)
        return self._implied[condition]

    def prefer(self, condition: Dim, needed: bool) -> bool:
        """Answer a condition by the example lengths, and note it as a preference, or as a guard if it holds and that is
        ``needed``."""
        known = self.answered(condition)
        if known is not None:
            return known
        if needed and self._cautious:
            return False
        if condition not in self.preferences:
            self.preferences[condition] = bool(self.value(condition))
        answer = self.preferences[condition]
        return self.ask(condition) if needed and answer else answer

    @contextlib.contextmanager
    def trial(self, values: Mapping[Dim, int], cautious: bool = False) -> Iterator[None]:
        """Ask questions at other example lengths, without effect on the questions that were asked before.

        Args:
            values: the example lengths meanwhile.
            cautious: let `permitted` answer False unless the ranges decide.
        """
        kept = self.guards, self.preferences, self._hints, self._values, self._closed, self._cautious
        given = {symbol.terms[0][0][0]: value for symbol, value in values.items()}
        self.guards, self.preferences, self._values, self._closed, self._cautious = {}, {}, {}, False, cautious
        self._hints = {**self._hints, **given}
        try:
            yield
        finally:
            self.guards, self.preferences, self._hints, self._values, self._closed, self._cautious = kept

    def close(self) -> None:
        """Refuse new questions from now on, and forget what was computed on the way."""
        self._closed = True
        for known in (self.sums, self.products, self.lesser, self.equal):
            known.clear()

    def holds(self) -> Length:
        """Return the condition that all guards have the answers that they had."""
        return all_of(*(g.condition if g.answer else negate(g.condition) for g in self.guards.values()))


def _scope_of(symbols: Iterable[tuple[str, int, int | None, int]]) -> Scope:
    scope = Scope()
    for symbol in symbols:
        scope.symbol(*symbol)
    return scope


def _replacement(guard: Guard) -> tuple[Dim, Length] | None:
    """Return a symbol, and what a guard says that it is equal to; None if it says nothing of the kind."""
    atom = single_atom(guard.condition)
    if atom is None or atom.kind != ("zero" if guard.answer else "nonzero"):
        return None
    difference: Any = atom.operands[0]
    for monomial, coefficient in difference.terms:
        if len(monomial) == 1 and monomial[0].kind == "symbol" and abs(coefficient) == 1:
            symbol = polynomial([(monomial, 1)])
            other = symbol - coefficient * difference
            low = range_of(other)[0]
            alone = not any(s is symbol for s in symbols_of([other]))  # comparing them would ask
            if alone and low is not None and low >= (symbol.low or 0):
                return symbol, other
    return None


def _asker() -> str:
    """Return the first place outside of the modules of `core.dim`, as ``file:line function``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _OWN_FILES:
        frame = frame.f_back
    file = frame.f_code.co_filename.rpartition("mgx_numba")[2].lstrip("/\\")
    return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"


_OWN_FILES = frozenset(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("polynomials", "quotients", "conditions", "expressions", "scope")
)
