"""Symbolic lengths: integer expressions over symbols, such as ``batch*seq`` or ``past + 1``.

A `Dim` is a sum of products of *atoms*, with integer coefficients. An atom is a symbol, or an operation that sums and
products do not express: floor division, remainder, minimum, maximum, a choice, or a condition (1 if it holds, else 0).
Expressions have one canonical form and are interned: equal ones are one object. An expression that has one value is
never a `Dim`; it is a plain ``int``.

A `Dim` is no ``int``, and Python cannot use it as one by accident: ``int(dim)``, ``range(dim)`` and NumPy raise
`SymbolicLengthError`. A comparison is answered if the ranges of the symbols decide it. Any other comparison is a
*guard*: it is answered for the example lengths (hints) of the symbols' `Scope`, which records the question, the answer
and who asked. What was computed so is right for all lengths that give every guard the same answer.

Code that serves all lengths asks no questions. It writes `minimum`, `maximum`, `select`, `ceil_div` and conditions
(`less`, `equal`), which take plain integers, too, and give plain integers then. A question whose answer chooses between
two right ways is asked by `preferred`, or, if only one of these ways serves all lengths, by `permitted`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any, NamedTuple

from ..errors import MgxError
from .bounds import (
    FUNCTIONS,
    POINTS,
    Ranges,
    decided,
    facts_of,
    interval,
    quotient_of_products,
    quotient_range,
    tightened,
)

__all__ = [
    "Atom", "Dim", "Guard", "Length", "Scope", "SharedLength", "SymbolicLengthError", "all_of", "any_of", "ceil_div",
    "common_divisor", "equal", "evaluate", "exact_quotient", "hint", "is_symbolic", "known_equal", "known_in",
    "known_less", "known_less_equal", "known_same", "less", "less_equal", "maximum", "minimum", "negate", "permitted",
    "preferred", "range_of", "same", "select", "substitute", "symbols_of", "typical",
]  # fmt: skip


class SymbolicLengthError(MgxError, TypeError):
    """A symbolic length was used where only a number will do, or asked a question that nothing decides."""


class Guard(NamedTuple):
    """A question that ranges do not decide: ``condition`` is 1 where its answer is yes; ``place`` is who asked."""

    condition: Dim
    answer: bool
    place: str


class Atom:
    """A factor of a product: a symbol, or an operation on lengths.

    Attributes:
        kind: "symbol", "floordiv", "mod", "min", "max", "bit_length", "select", or of a condition "negative" (1 if the
            operand is below 0), "zero", "nonzero", "all" (1 if all operands are 1).
        operands: of the operation; of a symbol empty.
        low, high: least and largest value; None where there is no bound.
        divisor: an integer that divides every value.
        scope: whose symbols it consists of.
        name: of a symbol.
        own: the expression that a symbol is.
    """

    __slots__ = ("__weakref__", "divisor", "high", "kind", "low", "name", "number", "operands", "own", "scope")

    def __init__(
        self,
        kind: str,
        operands: tuple[Length, ...],
        low: int | None,
        high: int | None,
        divisor: int,
        scope: Scope,
        name: str = "",
    ) -> None:
        self.kind = kind
        self.operands = operands
        self.low = low
        self.high = high
        self.divisor = divisor
        self.scope = scope
        self.name = name
        with _lock:
            self.number = next(_numbers)
        self.own: Dim | None = None

    def __repr__(self) -> str:
        return _atom_text(self)


Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]


def _counted() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


_lock = threading.RLock()
_numbers = _counted()
_atoms: weakref.WeakValueDictionary[Any, Atom] = weakref.WeakValueDictionary()
_dims: weakref.WeakValueDictionary[Terms, Dim] = weakref.WeakValueDictionary()


class Dim:
    """A symbolic length: a sum of products of atoms that has no single value. Immutable; equal ones are one object.

    Attributes:
        terms: pairs of a product of atoms and its coefficient, in canonical order; the empty product is the constant.
        low, high: least and largest value; None where there is no bound.
        divisor: an integer that divides every value.
        scope: whose symbols it consists of.
    """

    __slots__ = ("__weakref__", "_text", "divisor", "high", "low", "scope", "terms")

    terms: Terms
    low: int | None
    high: int | None
    divisor: int
    scope: Scope

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return _polynomial([*self.terms, ((), int(other))]) if other else self
        if isinstance(other, Dim):
            return _polynomial([*self.terms, *other.terms])
        return _as_integer(other, self.__add__)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return _polynomial([(m, -c) for m, c in self.terms])

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, (int, Dim)):
            return self if self is not other and type(other) is int and not other else self + (-other)
        return _as_integer(other, self.__sub__)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, (int, Dim)):
            return _as_integer(other, self.__mul__)
        found = self.scope.products.get((self, other))
        if found is None:
            terms = other.terms if isinstance(other, Dim) else (((), int(other)),)
            found = _polynomial([(_product(m, n), c * d) for m, c in self.terms for n, d in terms])
            self.scope.products[self, other] = found
        return found

    __rmul__ = __mul__

    def __pow__(self, exponent: Any) -> Any:
        return prod([self] * int(exponent))

    def __floordiv__(self, other: Any) -> Any:
        return _floordiv(self, other) if isinstance(other, (int, Dim)) else _as_integer(other, self.__floordiv__)

    def __rfloordiv__(self, other: Any) -> Any:
        return _floordiv(other, self) if isinstance(other, int) else _as_integer(other, self.__rfloordiv__)

    def __mod__(self, other: Any) -> Any:
        return _mod(self, other) if isinstance(other, (int, Dim)) else _as_integer(other, self.__mod__)

    def __rmod__(self, other: Any) -> Any:
        return _mod(other, self) if isinstance(other, int) else _as_integer(other, self.__rmod__)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __abs__(self) -> Any:
        return maximum(self, -self)

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << int(other))

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << int(other))

    def bit_length(self) -> Any:
        """Return the number of bits of the absolute value, as `int.bit_length`."""
        ends = [None if one is None else abs(one).bit_length() for one in (self.low, self.high)]
        known = self.low is not None and self.low >= 0
        low, high = (ends[0], ends[1]) if known else (0, None)
        return low if low is not None and low == high else _of_atom("bit_length", (self,), low, high, 1)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if _quiet.depth:
            return False
        if not isinstance(other, (int, Dim)):
            return _plain(other) and self == int(other)  # type: ignore[call-overload]
        return _answer(equal(self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return _answer(less(self, other))

    def __gt__(self, other: Any) -> bool:
        return _answer(less(other, self))

    def __le__(self, other: Any) -> bool:
        return not _answer(less(other, self))

    def __ge__(self, other: Any) -> bool:
        return not _answer(less(self, other))

    def __bool__(self) -> bool:
        return not _answer(equal(self, 0))

    __hash__ = object.__hash__

    def __index__(self) -> int:
        raise SymbolicLengthError(f"the length {self} is known when the program runs, and a number is needed here")

    __int__ = __index__

    def __float__(self) -> float:
        raise SymbolicLengthError(f"the length {self} is known when the program runs, and a number is needed here")

    def __truediv__(self, other: Any) -> Any:
        raise SymbolicLengthError(f"the length {self} has no quotient that is no integer: use //, or evaluate it")

    __rtruediv__ = __truediv__

    def __str__(self) -> str:
        if self._text is None:
            self._text = " + ".join(_term_text(m, c) for m, c in self.terms).replace("+ -", "- ")
        return self._text

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: Any) -> Dim:
        return self

    def __reduce__(self) -> Any:
        """A sum is made again of its atoms, so that equal ones are one object there, too."""
        parts = [([_parts(atom) for atom in monomial], coefficient) for monomial, coefficient in self.terms]
        return _again, (self.scope, parts)

    _text: str | None


Length = int | Dim
SharedLength = Any
"""A `Length` in records that back ends without symbolic lengths share, for which it is a plain integer."""


class Scope:
    """The symbols of one compiled program, their example lengths, and the questions that were answered by these.

    Attributes:
        symbols: in the order in which they were made.
        samples: values of all symbols for which kernels are looked for (`codegen.alternatives`), besides the hints.
        guards: the questions that ranges did not decide, each once, in the order of asking.
        preferences: conditions that chose between right ways, with the answers, see `preferred`.
        points: values of atoms at some values of the symbols, by which most proofs fail early.
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
        self._made: list[Dim] = []  # while they are there they need not be made again
        self.lesser: dict[tuple[Length, Length], Length] = {}
        """For pairs that were compared the condition that the first one is less: 1, 0, or an expression."""
        self.products: dict[tuple[Length, Length], Length] = {}
        """What was multiplied: strides of equal shapes are computed again and again."""
        self.equal: dict[tuple[Length, Length], Length] = {}
        """For pairs that were compared the condition that they are equal."""
        self.points = tuple(dict[Atom, int]() for _ in POINTS)
        self._implied: dict[Dim, bool | None] = {}
        self._equals: dict[Dim, Length] = {}
        self._ranges: tuple[dict[Dim, Guard], int, Ranges] | None = None
        self._cautious = False

    def clear(self) -> None:
        """Forget symbols, samples and questions."""
        self.__init__()  # type: ignore[misc]

    def symbol(self, name: str, low: int = 0, high: int | None = None, hint: int | None = None) -> Dim:
        """Make a symbol for lengths from ``low`` to ``high`` (None: without end); ``hint`` is its example length."""
        atom = Atom("symbol", (), low, high, 1, self, name)
        made = atom.own = _polynomial([((atom,), 1)])
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
                facts += facts_of(guard.condition.terms, guard.answer, Ranges(facts))
            self._ranges, self._implied = (self.guards, len(self.guards), Ranges(facts)), {}
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
        """Meanwhile these are the example lengths, and what is asked is noted apart: this scope's own questions are
        what they were before, afterwards. ``cautious``: nothing is `permitted` that is not known."""
        kept = self.guards, self.preferences, self._hints, self._values, self._closed, self._cautious
        given = {symbol.terms[0][0][0]: value for symbol, value in values.items()}
        self.guards, self.preferences, self._values, self._closed, self._cautious = {}, {}, {}, False, cautious
        self._hints = {**self._hints, **given}
        try:
            yield
        finally:
            self.guards, self.preferences, self._hints, self._values, self._closed, self._cautious = kept

    def close(self) -> None:
        """Answer nothing any more that has not been asked."""
        self._closed = True

    def holds(self) -> Length:
        """Return the condition that all guards have the answers that they had."""
        return all_of(*(g.condition if g.answer else negate(g.condition) for g in self.guards.values()))


def _scope_of(symbols: Iterable[tuple[str, int, int | None, int]]) -> Scope:
    scope = Scope()
    for symbol in symbols:
        scope.symbol(*symbol)
    return scope


def _parts(atom: Atom) -> tuple[Any, ...]:
    """Return what `_again` makes an atom of: a number of the scope's symbols, or an operation."""
    if atom.kind != "symbol":
        return atom.kind, atom.operands
    return (next(k for k, s in enumerate(atom.scope.symbols) if s.terms[0][0][0] is atom),)


def _again(scope: Scope, parts: Iterable[tuple[Sequence[tuple[Any, ...]], int]]) -> Any:
    """Return an expression that was pickled."""
    found: Any = 0
    for factors, coefficient in parts:
        term: Any = coefficient
        for kind, *operands in factors:
            term = term * (_BUILDERS[kind](*operands[0]) if operands else scope.symbols[kind])
        found = found + term
    return found


def _replacement(guard: Guard) -> tuple[Dim, Length] | None:
    """Return a symbol, and what a guard says that it is equal to; None if it says nothing of the kind."""
    atom = _single_atom(guard.condition)
    if atom is None or atom.kind != ("zero" if guard.answer else "nonzero"):
        return None
    difference: Any = atom.operands[0]
    for monomial, coefficient in difference.terms:
        if len(monomial) == 1 and monomial[0].kind == "symbol" and abs(coefficient) == 1:
            symbol = _polynomial([(monomial, 1)])
            other = symbol - coefficient * difference
            low = range_of(other)[0]
            alone = not any(s is symbol for s in symbols_of([other]))  # comparing them would ask
            if alone and low is not None and low >= (symbol.low or 0):
                return symbol, other
    return None


TYPICAL = 48
"""What a symbol counts as where an order is wanted that no result depends on; no power of two, which alignment is."""


def typical(length: Length) -> int:
    """Return a value that an expression may have: its own choice of lengths, whatever the example lengths are."""
    if not isinstance(length, Dim):
        return length
    usual = {s: min(max(TYPICAL + k, s.low or 0), s.high or TYPICAL + k) for k, s in enumerate(length.scope.symbols)}
    return evaluate(length, usual, length.scope.usual)


class _Quiet(threading.local):
    depth = 0


_quiet = _Quiet()


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal for all lengths, such as tuples, shapes or operators with symbolic lengths
    in them; no guard is noted."""
    _quiet.depth += 1
    try:
        return bool(a == b)
    finally:
        _quiet.depth -= 1


def is_symbolic(value: Any) -> bool:
    """Return whether a value is a symbolic length."""
    return isinstance(value, Dim)


def range_of(length: Length) -> tuple[int | None, int | None]:
    """Return the least and the largest value; None where there is no bound."""
    return (length.low, length.high) if isinstance(length, Dim) else (length, length)


def common_divisor(length: Length) -> int:
    """Return an integer that divides every value; 0 for 0."""
    return length.divisor if isinstance(length, Dim) else abs(length)


def ceil_div(a: Length, b: Length) -> Any:
    """Return the quotient, rounded up."""
    if isinstance(b, Dim) and known_less(0, b):
        return (a - 1) // b + 1  # whose range begins at 1 where that of a does
    return -(-a // b)


def exact_quotient(a: Length, b: Length) -> Any:
    """Return a // b if b is not 0, or symbolic, and divides a whatever the symbols are; else None. No guard is noted.

    Where a symbolic b is 0, a is, too, and the quotient is right in that its product with b is a.
    """
    if isinstance(b, Dim):
        return _exact_quotient(a, b)
    return a // b if b and common_divisor(a) % b == 0 else None


def minimum(first: Length, *others: Length) -> Any:
    """Return the least of some lengths."""
    for other in others:
        if isinstance(first, Dim) or isinstance(other, Dim):
            first = _extreme("min", first, other)
        elif other < first:
            first = other
    return first


def maximum(first: Length, *others: Length) -> Any:
    """Return the largest of some lengths."""
    for other in others:
        if isinstance(first, Dim) or isinstance(other, Dim):
            first = _extreme("max", first, other)
        elif other > first:
            first = other
    return first


def less(a: Length, b: Length) -> Any:
    """Return the condition that a is less than b: 1, 0, or an expression."""
    scope = a.scope if isinstance(a, Dim) else b.scope if isinstance(b, Dim) else None
    if scope is None:
        return int(a < b)
    found = scope.lesser.get((a, b))
    if found is None:
        found = scope.lesser[a, b] = _less(a, b)
    return found


def _less(a: Length, b: Length) -> Any:
    difference = a - b
    if not isinstance(difference, Dim):
        return int(difference < 0)
    if difference.high is not None and difference.high < 0:
        return 1
    if difference.low is not None and difference.low >= 0:
        return 0
    if (plain := _without_remainders(difference)) is not difference and not isinstance(plain, Dim):
        return int(plain < 0)
    difference = _without_factor(difference)
    divisor, constant = _content(difference), _constant(difference)
    if divisor > 1:  # d*x + c < 0 is x < ceil(-c/d), the same as x + floor(c/d) < 0
        difference = _polynomial([(m, c // divisor) for m, c in difference.terms if m] + [((), constant // divisor)])
    return _of_atom("negative", (difference,), 0, 1, 1)


def less_equal(a: Length, b: Length) -> Any:
    """Return the condition that a is at most b."""
    return negate(less(b, a))


def equal(a: Length, b: Length) -> Any:
    """Return the condition that two lengths are equal: 1, 0, or an expression."""
    scope = a.scope if isinstance(a, Dim) else b.scope if isinstance(b, Dim) else None
    if scope is None:
        return int(a == b)
    found = scope.equal.get((a, b))
    if found is None:
        found = scope.equal[a, b] = _equal(a, b)
    return found


def _equal(a: Length, b: Length) -> Any:
    difference = a - b
    if not isinstance(difference, Dim):
        return int(difference == 0)
    if (difference.low is not None and difference.low > 0) or (difference.high is not None and difference.high < 0):
        return 0
    if (plain := _without_remainders(difference)) is not difference and not isinstance(plain, Dim):
        return int(plain == 0)
    difference = _without_factor(difference)
    divisor, constant = _content(difference), _constant(difference)
    if constant % divisor:
        return 0
    sign = -1 if difference.terms[-1][1] < 0 else 1  # of both signs one form
    difference = _polynomial([(m, sign * c // divisor) for m, c in difference.terms])
    return _of_atom("zero", (difference,), 0, 1, 1)


def known_equal(a: Length, b: Length) -> bool:
    """Return whether two lengths are equal whatever the symbols are; no guard is noted."""
    if a is b:
        return True
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a == b
    return type(found := equal(a, b)) is int and found == 1


def known_in(length: Length, *values: int) -> bool:
    """Return whether a length is a plain integer, and one of these; no guard is noted."""
    return not isinstance(length, Dim) and length in values


def known_less(a: Length, b: Length) -> bool:
    """Return whether a is less than b whatever the symbols are; no guard is noted."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a < b
    return type(found := less(a, b)) is int and found == 1


def known_less_equal(a: Length, b: Length) -> bool:
    """Return whether a is at most b whatever the symbols are; no guard is noted."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a <= b
    return type(found := less(b, a)) is int and found == 0


def known_same(a: Sequence[Length], b: Sequence[Length]) -> bool:
    """Return whether two sequences hold equal lengths whatever the symbols are; no guard is noted."""
    return len(a) == len(b) and all(x is y or known_equal(x, y) for x, y in zip(a, b))


def preferred(condition: Length) -> bool:
    """Return whether a condition holds, where a right result follows from either answer.

    What ranges do not decide is answered by the example lengths, without a guard.
    """
    return condition.scope.prefer(condition, False) if isinstance(condition, Dim) else bool(condition)


def permitted(condition: Length) -> bool:
    """Return whether a condition holds that only one way needs: a yes may become a guard, a no is for any length."""
    return condition.scope.prefer(condition, True) if isinstance(condition, Dim) else bool(condition)


def negate(condition: Length) -> Any:
    """Return the opposite of a condition."""
    if isinstance(condition, Dim) and len(condition.terms) == 1 and len(condition.terms[0][0]) == 1:
        (((atom,), coefficient),) = condition.terms
        if coefficient == 1 and atom.kind == "negative":
            return less(-1, atom.operands[0])
        if coefficient == 1 and atom.kind in ("zero", "nonzero"):
            return _of_atom("zero" if atom.kind == "nonzero" else "nonzero", atom.operands, 0, 1, 1)
    return 1 - condition


def all_of(*conditions: Length) -> Any:
    """Return the condition that all of some hold; none gives 1."""
    found: dict[Dim, None] = {}
    for condition in conditions:
        if not isinstance(condition, Dim):
            if not condition:
                return 0
            continue
        (monomial, coefficient), *more = condition.terms
        if not more and coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "all":
            found.update(dict.fromkeys(monomial[0].operands))  # type: ignore[arg-type]
        else:
            found[condition] = None
    if len(found) < 2:
        return next(iter(found), 1)
    return _of_atom("all", tuple(sorted(found, key=_place)), 0, 1, 1)


def any_of(*conditions: Length) -> Any:
    """Return the condition that one of some holds; none gives 0."""
    return negate(all_of(*(negate(one) for one in conditions)))


def select(condition: Length, a: Length, b: Length) -> Any:
    """Return a where a condition holds, else b."""
    if not isinstance(condition, Dim):
        return a if condition else b
    if a is b or (type(a) is int and type(b) is int and a == b):
        return a
    bounds = [range_of(a), range_of(b)]
    low = None if any(one[0] is None for one in bounds) else min(one[0] for one in bounds)  # type: ignore[type-var]
    high = None if any(one[1] is None for one in bounds) else max(one[1] for one in bounds)  # type: ignore[type-var]
    return _of_atom("select", (condition, a, b), low, high, gcd(common_divisor(a), common_divisor(b)) or 1)


def evaluate(length: Length, values: Mapping[Any, int], known: dict[Dim, int] | None = None) -> int:
    """Return an expression's value.

    Args:
        length: the expression; a plain integer is its own value.
        values: of the symbols, or of their atoms.
        known: values that were computed before for the same symbols; it takes new ones.
    """
    if not isinstance(length, Dim):
        return length
    if known is None:
        known = {}
    found = known.get(length)
    if found is None:
        found = 0
        for monomial, coefficient in length.terms:
            for atom in monomial:
                coefficient *= _atom_value(atom, values, known)
            found += coefficient
        known[length] = found
    return found


def hint(length: Length) -> int:
    """Return an expression's value for the example lengths. No guard is noted: it may decide between ways that are all
    right for all lengths, such as which of two buffers lies first, and nothing else."""
    return length.scope.value(length) if isinstance(length, Dim) else length


def _atom_value(atom: Atom, values: Mapping[Any, int], known: dict[Dim, int]) -> int:
    if atom.kind == "symbol":
        found = values.get(atom)
        return values[atom.own] if found is None else found
    if atom.kind == "select":
        chosen = 1 if evaluate(atom.operands[0], values, known) else 2
        return evaluate(atom.operands[chosen], values, known)
    return FUNCTIONS[atom.kind](*(evaluate(one, values, known) for one in atom.operands))


_BUILDERS: dict[str, Callable[..., Any]] = {
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": minimum, "max": maximum, "select": select,
    "negative": lambda a: less(a, 0), "zero": lambda a: equal(a, 0), "nonzero": lambda a: negate(equal(a, 0)),
    "all": all_of, "bit_length": lambda a: a.bit_length(),
}  # fmt: skip


def substitute(length: Length, replacements: Mapping[Dim, Length], known: dict[Dim, Any] | None = None) -> Any:
    """Return an expression with other expressions in the place of symbols; symbols without one stay."""
    if not isinstance(length, Dim):
        return length
    if known is None:
        known = {}
    found = known.get(length)
    if found is None:
        found = 0
        for monomial, coefficient in length.terms:
            term: Any = coefficient
            for atom in monomial:
                if atom.kind == "symbol":
                    own = _polynomial([((atom,), 1)])
                    term = term * replacements.get(own, own)  # type: ignore[call-overload]
                else:
                    term = term * _BUILDERS[atom.kind](*(substitute(o, replacements, known) for o in atom.operands))
            found = found + term
        known[length] = found
    return found


def symbols_of(lengths: Iterable[Any]) -> list[Dim]:
    """Return the symbols in some expressions, each once; plain values have none."""
    found: dict[Dim, None] = {}
    seen: set[Dim] = set()
    waiting = [one for one in lengths if isinstance(one, Dim)]
    while waiting:
        dim = waiting.pop()
        if dim in seen:
            continue
        seen.add(dim)
        for monomial, _ in dim.terms:
            for atom in monomial:
                if atom.kind == "symbol":
                    found[_polynomial([((atom,), 1)])] = None  # type: ignore[index]
                waiting += (one for one in atom.operands if isinstance(one, Dim))
    return sorted(found, key=lambda s: s.terms[0][0][0].number)


def _as_integer(value: Any, function: Callable[[int], Any]) -> Any:
    """Apply a method to an integer of another type, such as NumPy's."""
    return function(int(value)) if _plain(value) else NotImplemented


def _plain(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, Dim) and getattr(value, "ndim", 0) == 0


def _answer(condition: Any) -> bool:
    return condition.scope.ask(condition) if isinstance(condition, Dim) else bool(condition)


def _asker() -> str:
    """Return the first place outside of this module, as ``file:line function``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    file = frame.f_code.co_filename.rpartition("mgx_numba")[2].lstrip("/\\")
    return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"


def _product(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=_number)) if a and b else a or b


def _number(atom: Atom) -> int:
    return atom.number


def _order(term: tuple[Monomial, int]) -> tuple[int, list[int]]:
    return -len(term[0]), [atom.number for atom in term[0]]


def _polynomial(terms: Sequence[tuple[Monomial, int]]) -> Any:
    """Return the sum of terms in its canonical form."""
    collected: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        collected[monomial] = collected.get(monomial, 0) + coefficient
    own = [(m, c) for m, c in collected.items() if c]
    if not own:
        return 0
    if len(own) == 1 and not own[0][0]:
        return own[0][1]
    own.sort(key=_order)
    key = tuple(own)
    with _lock:
        found = _dims.get(key)
        if found is None:
            found = _dims[key] = _made(key)
    if found.low is not None and found.low == found.high and not _is_symbol(found):
        return found.low
    return found


def _made(terms: Terms) -> Dim:
    made = object.__new__(Dim)
    made.terms = terms
    made._text = None
    found = interval(terms)
    if len({c > 0 for m, c in terms if m}) > 1:
        found = tightened(terms, found)
    made.low, made.high = found
    made.divisor = gcd(*(c * prod([a.divisor for a in m]) for m, c in terms))
    scopes = {id(atom.scope): atom.scope for m, _ in terms for atom in m}
    if len(scopes) != 1:
        raise SymbolicLengthError(f"lengths of different programs in one expression: {made}")
    (made.scope,) = scopes.values()
    made.scope._made.append(made)
    return made


def _content(dim: Dim) -> int:
    """Return the largest number that divides all coefficients but the constant."""
    return gcd(*(c for m, c in dim.terms if m))


def _constant(dim: Dim) -> int:
    monomial, coefficient = dim.terms[-1]
    return 0 if monomial else coefficient


def _of_atom(kind: str, operands: tuple[Length, ...], low: int | None, high: int | None, divisor: int) -> Any:
    """Return the expression that is one operation."""
    key = (kind, *operands)
    with _lock:
        atom = _atoms.get(_Key(key))
        if atom is None:
            scope = next(o.scope for o in operands if isinstance(o, Dim))
            atom = _atoms[_Key(key)] = Atom(kind, operands, low, high, divisor, scope)
    return _polynomial([((atom,), 1)])


class _Key:
    """The key of an atom: its operands by identity, so that looking it up asks no questions."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key) or len(self.parts) != len(other.parts):
            return False
        return all(
            a is b or (type(a) is type(b) and type(a) is not Dim and a == b) for a, b in zip(self.parts, other.parts)
        )


def _floordiv(a: Length, b: Length) -> Any:
    if isinstance(b, int):
        return _divided(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    quotient = _exact_quotient(a, b)
    if quotient is not None:
        return quotient
    if isinstance(a, Dim) and b.low is not None and b.low > 0:
        factor = _common_factor([*a.terms, *b.terms])
        if factor is not None:
            return _exact_quotient(a, factor) // _exact_quotient(b, factor)
        whole = _whole_part(a, b)
        if whole is not None:
            return whole + (a - whole * b) // b
        nested = _nested(a)
        if nested is not None:
            return nested[0] // (nested[1] * b)
    low, high = quotient_range(range_of(a), range_of(b))
    if low is not None and low == high:
        return low
    return _of_atom("floordiv", (a, b), low, high, 1)


def _divided(a: Any, b: int) -> Any:
    """Return the quotient by a plain integer."""
    if b < 0:
        return _divided(-a, -b)
    if b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if not isinstance(a, Dim):
        return a // b
    if b == 1:
        return a
    whole, rest = _split(a, b)
    if not isinstance(rest, Dim):
        return whole + rest // b
    if rest.terms[0][1] < 0:  # the quotient of x is the one of b - 1 - x, rounded up and negative: one form of both
        return whole - _divided(b - 1 - rest, b)
    low, high = quotient_range((rest.low, rest.high), (b, b))
    if low is not None and low == high:
        return whole + low
    nested = _nested(rest)
    if nested is not None:
        return whole + nested[0] // (nested[1] * b)
    shared = gcd(_content(rest), b)
    if shared > 1:  # (d*x + c) // (d*e) is (x + c//d) // e
        reduced = _polynomial([(m, c // shared) for m, c in rest.terms])
        return whole + _divided(reduced, b // shared)
    return whole + _of_atom("floordiv", (rest, b), low, high, 1)


def _split(a: Dim, b: int) -> tuple[Any, Any]:
    """Return the quotients of the coefficients, rounded towards 0, and what is left; it has a constant from 0 on."""
    terms = [(m, c // b if c > 0 or not m else -(-c // b)) for m, c in a.terms]
    whole = _polynomial([(m, c) for m, c in terms if c])
    return whole, a - whole * b


def _nested(dim: Dim) -> tuple[Any, Any] | None:
    """Return a and b for an expression that is a // b, such as x + y // b, for a positive b; None for others."""
    for monomial, coefficient in dim.terms:
        if coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "floordiv":
            a, b = monomial[0].operands
            if known_less(0, b):
                return (dim - _polynomial([(monomial, 1)])) * b + a, b
    return None


def _single_atom(length: Length) -> Atom | None:
    """Return the atom that an expression is, if it is one."""
    if not isinstance(length, Dim) or len(length.terms) > 1:
        return None
    monomial, coefficient = length.terms[0]
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def _common_factor(terms: Sequence[tuple[Monomial, int]]) -> Dim | None:
    """Return the product of atoms that all terms have in common and that are at least 1; None if there is none."""
    if any(not m for m, _ in terms):
        return None
    common = [atom for atom in terms[0][0] if atom.low is not None and atom.low > 0]
    for monomial, _ in terms[1:]:
        left, both = list(monomial), []
        for atom in common:
            if atom in left:
                left.remove(atom)
                both.append(atom)
        common = both
    return _polynomial([(tuple(common), 1)]) if common else None


def _without_factor(difference: Dim) -> Dim:
    """Return an expression that has the sign of another one: without what all its terms have in common."""
    factor = _common_factor(difference.terms)
    if factor is None:
        return difference
    quotient = _exact_quotient(difference, factor)
    return quotient if isinstance(quotient, Dim) else difference


def _whole_part(a: Dim, b: Dim) -> Any:
    """Return the quotient of the terms that a divisor of one term divides; None if there are none."""
    if len(b.terms) > 1:
        return None
    ((factor, divisor),) = b.terms
    found = []
    for monomial, coefficient in a.terms:
        other = quotient_of_products(monomial, factor)
        if other is not None and coefficient % divisor == 0:
            found.append((other, coefficient // divisor))
    return _polynomial(found) if found else None


def _exact_quotient(a: Length, b: Dim) -> Any:
    """Return a // b if b divides a as an expression: b of one term, or the two in proportion; else None."""
    if not isinstance(a, Dim):
        return None
    if len(b.terms) == 1:
        monomial, coefficient = b.terms[0]
        found = []
        for m, c in a.terms:
            left = list(m)
            for atom in monomial:
                if atom not in left:
                    return None
                left.remove(atom)
            if c % coefficient:
                return None
            found.append((tuple(left), c // coefficient))
        return _polynomial(found)
    quotient: Any = 0
    rest: Any = a
    while isinstance(rest, Dim):  # division of polynomials by the leading term
        (m, c), (n, d) = rest.terms[0], b.terms[0]
        left = list(m)
        for atom in n:
            if atom not in left:
                return None
            left.remove(atom)
        if c % d:
            return None
        step = _polynomial([(tuple(left), c // d)])
        quotient, following = quotient + step, rest - b * step
        if isinstance(following, Dim) and len(following.terms) > len(a.terms) + len(b.terms):
            return None
        rest = following
    return quotient if rest == 0 else None


def _mod(a: Length, b: Length) -> Any:
    if isinstance(b, int):
        if b <= 0 or not isinstance(a, Dim):
            return a - a // b * b
        return _remainder(a, b)
    if not isinstance(a, Dim) or b.low is None or b.low < 1:
        return a - a // b * b
    if _exact_quotient(a, b) is not None:
        return 0
    factor = _common_factor([*a.terms, *b.terms])
    if factor is not None:
        return factor * (_exact_quotient(a, factor) % _exact_quotient(b, factor))
    whole = _whole_part(a, b)
    if whole is not None:
        return (a - whole * b) % b
    if a.low is not None and a.low >= 0 and known_less(a, b):
        return a
    divisor = gcd(a.divisor, b.divisor)
    return _of_atom("mod", (a, b), 0, None if b.high is None else b.high - divisor, divisor)


def _remainder(a: Dim, b: int) -> Any:
    """Return the remainder of the division by a plain integer, of the same form as `_divided` gives the quotient."""
    _, rest = _split(a, b)
    if not isinstance(rest, Dim):
        return rest % b
    if rest.divisor % b == 0:
        return 0
    if rest.terms[0][1] < 0:
        return b - 1 - (b - 1 - rest) % b
    if rest.low is not None and rest.high is not None and rest.low >= 0 and rest.high < b:
        return rest
    shared = gcd(_content(rest), b)
    if shared > 1:  # (d*x + c) % (d*e) is (x + c//d) % e * d + c % d
        reduced = _polynomial([(m, c // shared) for m, c in rest.terms])
        return reduced % (b // shared) * shared + _constant(rest) % shared
    divisor = gcd(rest.divisor, b)
    return _of_atom("mod", (rest, b), 0, b - divisor, divisor)


def _without_remainders(length: Dim) -> Any:
    """Return an expression with a - a//b*b in the place of a % b."""
    found: Any = length
    while isinstance(found, Dim):
        remainders = [atom for monomial, _ in found.terms for atom in monomial if atom.kind == "mod"]
        if not remainders:
            break
        outer = max(remainders, key=_number)
        a, b = outer.operands
        value = a - a // b * b
        for monomial, coefficient in found.terms:
            if outer in monomial:
                others = list(monomial)
                others.remove(outer)
                found = found + _polynomial([(tuple(others), coefficient)]) * value
                found = found - _polynomial([(monomial, coefficient)])
    return found


def _extreme(kind: str, a: Length, b: Length) -> Any:
    if a is b:
        return a
    if type(a) is type(b) is int:
        return min(a, b) if kind == "min" else max(a, b)
    difference = a - b
    if not isinstance(difference, Dim):
        smaller = difference <= 0
        return a if smaller == (kind == "min") else b
    if difference.high is not None and difference.high <= 0:
        return a if kind == "min" else b
    if difference.low is not None and difference.low >= 0:
        return b if kind == "min" else a
    (a_low, a_high), (b_low, b_high) = range_of(a), range_of(b)
    if kind == "min":
        low = None if a_low is None or b_low is None else min(a_low, b_low)
        high = min((h for h in (a_high, b_high) if h is not None), default=None)
    else:
        low = max((h for h in (a_low, b_low) if h is not None), default=None)
        high = None if a_high is None or b_high is None else max(a_high, b_high)
    operands = tuple(sorted((a, b), key=_place))
    return _of_atom(kind, operands, low, high, gcd(common_divisor(a), common_divisor(b)) or 1)


def _place(length: Length) -> tuple[int, Any]:
    """Return a key that orders operands in one way: plain integers first."""
    if not isinstance(length, Dim):
        return 0, [length]
    return 1, [[-len(m), [atom.number for atom in m], c] for m, c in length.terms]


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [_atom_text(atom) for atom in monomial]
    if not factors:
        return str(coefficient)
    if coefficient != 1:
        factors.insert(0, "-" if coefficient == -1 else str(coefficient))
    text = "*".join(factors)
    return text.replace("-*", "-", 1) if coefficient == -1 else text


def _atom_text(atom: Atom) -> str:
    if atom.kind == "symbol":
        return atom.name
    if atom.kind == "negative":
        return f"({atom.operands[0]} < 0)"
    if atom.kind in ("zero", "nonzero"):
        return f"({atom.operands[0]} {'==' if atom.kind == 'zero' else '!='} 0)"
    if atom.kind == "all":
        return f"({' and '.join(map(str, atom.operands))})"
    if atom.kind in ("floordiv", "mod"):
        sign = "//" if atom.kind == "floordiv" else "%"
        left, right = (str(o) if isinstance(o, int) or _is_symbol(o) else f"({o})" for o in atom.operands)
        return f"({left} {sign} {right})"
    return f"{atom.kind}({', '.join(map(str, atom.operands))})"


def _is_symbol(dim: Dim) -> bool:
    (monomial, coefficient), *more = dim.terms
    return not more and coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "symbol"
