"""Scopes: the symbols of a program, and guards on them; spaces: the expressions of all programs. See `core.dim`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .bounds import AtomRanges, decided, facts_of, values_of_symbol
from .conditions import all_of, negate
from .expressions import evaluate, substitute, symbols_of, usual_length
from .polynomials import Atom, Dim, Length, SymbolicLengthError, Terms, polynomial, range_of, single_atom


class Guard(NamedTuple):
    """A question that ranges do not decide: ``condition`` is 1 if its answer is yes, ``place`` is the code that
    asked."""

    condition: Dim
    answer: bool
    place: str


class ExpressionSpace:
    """Interned expressions, with what follows from their symbols' ranges: equal expressions are the same object.

    Programs share a space (`shared_space`), since they have the same expressions: layers of one family of networks,
    variants of a model, plans for other guards. What depends on one program is in its `Scope`.

    Attributes:
        symbols: symbols by their number in a scope, name and range.
        interned: expressions by their terms; ``atoms`` by their operation.
        sums, differences, products, quotients: those of pairs of lengths.
        extremes: minima and maxima, by "min" or "max" and the pair of lengths.
        lesser, equal: for pairs that were compared the condition that the first is less, or that they are equal.
        answers: answers to questions about problems, see `targets.lowering.solutions`.
        shapes: shapes with symbolic lengths by the arguments that they were made of.
    """

    def __init__(self) -> None:
        self.symbols: dict[tuple[int, str, int, int | None], Dim] = {}
        self.interned: dict[Terms, Dim] = {}
        self.atoms: dict[Hashable, Atom] = {}
        self.sums: dict[tuple[Length, Length], Length] = {}
        self.differences: dict[tuple[Length, Length], Length] = {}
        self.products: dict[tuple[Length, Length], Length] = {}
        self.quotients: dict[tuple[Length, Length], Length] = {}
        self.extremes: dict[tuple[str, Length, Length], Length] = {}
        self.lesser: dict[tuple[Length, Length], Length] = {}
        self.equal: dict[tuple[Length, Length], Length] = {}
        self.answers: dict[Hashable, Any] = {}
        self.shapes: dict[object, Any] = {}
        self.used = _Used()

    @property
    def scope(self) -> Scope:
        """The scope in which this thread uses the symbols.

        Raises:
            SymbolicLengthError: there is none, since the program was compiled.
        """
        if not self.used.scopes:
            raise SymbolicLengthError("a question about lengths is asked after the program was compiled")
        return self.used.scopes[-1]

    def symbol(self, place: int, name: str, low: int, high: int | None) -> Dim:
        """Return the symbol that is number ``place`` in a scope."""
        key = place, name, low, high
        found = self.symbols.get(key)
        if found is None:
            atom = Atom("symbol", (), low, high, 1, self, name, values_of_symbol(low, high, place))
            atom.own = polynomial([((atom,), 1)])
            found = self.symbols.setdefault(key, atom.own)
        return found


class _Used(threading.local):
    """The scopes that a thread uses, the innermost last."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []


MOST_EXPRESSIONS = 1 << 14
"""Number of expressions of a shared space from which programs get a new one. They take 12 MB; an encoder of 12 layers
has 600."""
_shared = ExpressionSpace()


def shared_space() -> ExpressionSpace:
    """Return the space of programs that are compiled now."""
    if len(_shared.interned) > MOST_EXPRESSIONS:
        forget_expressions()
    return _shared


def forget_expressions() -> None:
    """Give programs that are compiled from now on a new space."""
    global _shared
    _shared = ExpressionSpace()


class Scope:
    """The symbols of one compiled program, their example lengths, and the guards and preferences that these answered.

    Questions about the symbols are asked in a ``with`` block of the scope, unless it has a space of its own.

    Attributes:
        space: holds the expressions.
        symbols: all symbols, in order of creation.
        samples: values of all symbols for which kernels are chosen (`codegen.alternatives`), besides the hints.
        guards: questions that ranges did not decide, each once, in order of asking.
        preferences: conditions that chose between correct alternatives, with the answers, see `preferred`.
        usual: values of symbols and expressions for typical lengths, see `typical`.
    """

    def __init__(self, space: ExpressionSpace | None = None) -> None:
        """Create a scope in a space that programs share; None: in a space of its own, which this thread uses."""
        self.space = ExpressionSpace() if space is None else space
        if space is None:
            self.space.used.scopes.append(self)
        self.clear()

    def clear(self) -> None:
        """Remove all symbols, samples, guards and preferences."""
        self.symbols: list[Dim] = []
        self._first = 0  # symbols of outer scopes have smaller numbers
        self.samples: list[dict[Dim, int]] = []
        self.guards: dict[Dim, Guard] = {}
        self.preferences: dict[Dim, bool] = {}
        self.usual: dict[Dim, int] = {}
        self._hints: dict[Atom, int] = {}
        self._values: dict[Dim, int] = {}
        self._closed = False
        self._implied: dict[Dim, bool | None] = {}
        self._equals: dict[Dim, Length] = {}
        self._ranges: tuple[dict[Dim, Guard], int, AtomRanges] | None = None
        self._cautious = False

    def __enter__(self) -> Scope:
        self.space.used.scopes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.space.used.scopes.remove(self)

    def symbol(self, name: str, low: int = 0, high: int | None = None, hint: int | None = None) -> Dim:
        """Add a symbol for lengths from ``low`` to ``high`` (None: unbounded); ``hint`` is its example length."""
        made = self.space.symbol(self._first + len(self.symbols), name, low, high)
        self.symbols.append(made)
        if hint is None:
            hint = low if high is None else min(max(low, 16), high)
        self._hints[made.terms[0][0][0]] = hint
        self.usual[made] = usual_length(made, len(self.symbols) - 1)
        return made

    def adopt(self, outer: Scope, lengths: Mapping[Dim, int]) -> None:
        """Take over symbols of ``outer``, a scope of the same space, with example lengths, before any `symbol` is
        added."""
        self._first = outer._first + len(outer.symbols)
        self.symbols += lengths
        self._hints |= {s.terms[0][0][0]: length for s, length in lengths.items()}
        self.usual |= {s: usual_length(s, k) for k, s in enumerate(self.symbols)}

    def __deepcopy__(self, memo: object) -> Scope:
        return self

    @contextlib.contextmanager
    def tentative(self) -> Iterator[None]:
        """Forget all symbols, samples, guards and preferences of a block that raises."""
        forget = self.forgetting()
        try:
            yield
        except BaseException:
            forget()
            raise

    def forgetting(self) -> Callable[[], None]:
        """Return a function that forgets all symbols, samples, guards and preferences added after this call."""
        before = len(self.symbols), list(self.samples), dict(self.guards), dict(self.preferences), dict(self.usual)
        closed = self._closed

        def forget() -> None:
            count, samples, guards, preferences, usual = before
            del self.symbols[count:]
            self.samples, self.guards = list(samples), dict(guards)
            self.preferences, self.usual = dict(preferences), dict(usual)
            self._closed, self._ranges, self._implied, self._equals, self._values = closed, None, {}, {}, {}

        return forget

    def hints(self) -> dict[Dim, int]:
        """Return the example lengths of all symbols."""
        return {s: self._hints[s.terms[0][0][0]] for s in self.symbols}

    def samples_of(self, symbols: Sequence[Dim], more: Iterable[Mapping[Dim, int]] = ()) -> list[dict[Dim, int]]:
        """Return the example lengths of symbols, then the other values that they have in `samples` and ``more``."""
        hints = {s: self._hints[s.terms[0][0][0]] for s in symbols}
        found = {tuple(hints.values()): hints}
        for sample in (*self.samples, *more):
            if not hints.keys().isdisjoint(sample):
                own = {s: sample.get(s, hints[s]) for s in symbols}
                found.setdefault(tuple(own.values()), own)
        return list(found.values())

    def value(self, length: Length) -> int:
        """Return an expression's value for the example lengths."""
        return evaluate(length, self._hints, self._values)

    def ask(self, condition: Dim) -> bool:
        """Answer a condition by the example lengths, and record the answer as a guard.

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
        """Return the answer that guards give or imply; None if they do not."""
        if not self.guards:
            return None
        known = self.guards.get(condition)
        if known is not None:
            return known.answer
        if self._ranges is None or self._ranges[0] is not self.guards:
            self._ranges, self._equals = (self.guards, 0, AtomRanges()), {}
        _, count, ranges = self._ranges
        if count < len(self.guards):
            for guard in islice(self.guards.values(), count, None):
                ranges = AtomRanges([*ranges.given, *facts_of(guard.condition.terms, guard.answer, ranges)])
                self._equals.update(filter(None, [_replacement(guard)]))
            self._ranges, self._implied = (self.guards, len(self.guards), ranges), {}
        if condition not in self._implied:
            plain = substitute(condition, self._equals)
            if isinstance(plain, Dim):
                known = self.guards.get(plain)
                self._implied[condition] = decided(plain.terms, ranges) if known is None else known.answer
            else:
                self._implied[condition] = bool(plain)
        return self._implied[condition]

    def prefer(self, condition: Dim, needed: bool) -> bool:
        """Answer a condition by the example lengths and record a preference; if it holds and is ``needed``, record a
        guard."""
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
        """Answer questions at other example lengths inside a ``with`` block, without effect on the recorded answers.

        Args:
            values: the example lengths inside the block.
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
        """Refuse new questions from now on."""
        self._closed = True

    def holds(self) -> Length:
        """Return the condition that all guards have the recorded answers."""
        return all_of(*(g.condition if g.answer else negate(g.condition) for g in self.guards.values()))


def _replacement(guard: Guard) -> tuple[Dim, Length] | None:
    """Return a symbol and the expression that a guard states to be equal to it; None if the guard states no
    equality."""
    atom = single_atom(guard.condition)
    if atom is None or atom.kind != ("zero" if guard.answer else "nonzero"):
        return None
    difference: Any = atom.operands[0]
    for monomial, coefficient in difference.terms:
        if len(monomial) == 1 and monomial[0].kind == "symbol" and abs(coefficient) == 1:
            symbol = polynomial([(monomial, 1)])
            other = symbol - coefficient * difference
            low = range_of(other)[0]
            alone = not any(s is symbol for s in symbols_of([other]))  # by identity: == would record a guard
            if alone and low is not None and low >= (symbol.low or 0):
                return symbol, other
    return None


def _asker() -> str:
    """Return the calling code outside the modules of `core.dim`, as ``file:line function``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _OWN_FILES:
        frame = frame.f_back
    file = frame.f_code.co_filename.rpartition("mgx_numba")[2].lstrip("/\\")
    return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"


_OWN_FILES = frozenset(
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("polynomials", "quotients", "conditions", "expressions", "scope")
)
