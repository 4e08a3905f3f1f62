"""Symbolic expressions: sums of products of atoms in one canonical form, interned. See `core.dim`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, SupportsInt, TypeGuard, TypeVar

from ..errors import MgxError
from ..structural import asks_nothing
from .bounds import interval, tightened, values_at_points, values_of_atom

if TYPE_CHECKING:
    from .scope import ExpressionSpace, Scope

T = TypeVar("T")


class SymbolicLengthError(MgxError, TypeError):
    """A symbolic length was used where a number is required, or a closed scope was asked an undecided question."""


class UnfollowedLengthError(SymbolicLengthError):
    """A length follows from symbolic lengths in a way that no expression has."""


class Atom:
    """A factor of a product: a symbol, or an operation on lengths.

    Attributes:
        kind: "symbol", "floordiv", "mod", "min", "max", "bit_length", "select", or a condition: "negative" (1 if the
            operand is below 0), "zero", "nonzero", "all" (1 if all operands are 1).
        operands: operands of the operation; empty for a symbol.
        low, high: least and largest value; None for no bound.
        divisor: an integer that divides every value.
        space: holds the interned expressions with its symbols.
        name: a symbol's name.
        own: the expression that consists of this atom.
        at: values at `bounds.POINTS`, by which most proofs fail early.
    """

    __slots__ = ("at", "divisor", "high", "kind", "low", "name", "number", "operands", "own", "space")

    def __init__(
        self,
        kind: str,
        operands: tuple[Length, ...],
        low: int | None,
        high: int | None,
        divisor: int,
        space: ExpressionSpace,
        name: str = "",
        at: tuple[int, ...] = (),
    ) -> None:
        self.kind = kind
        self.operands = operands
        self.low = low
        self.high = high
        self.divisor = divisor
        self.space = space
        self.name = name
        self.number = next(_numbers)
        self.own: Any = None
        self.at: tuple[int, ...] = at or values_of_atom(self)

    def __repr__(self) -> str:
        return _atom_text(self)


Monomial = tuple[Atom, ...]


Terms = tuple[tuple[Monomial, int], ...]


_numbers = itertools.count()


OPERATIONS: dict[str, Callable[..., Length]] = {}
"""Implementations of operators and methods of `Dim`, registered by the other modules that `core.dim` imports."""


class Dim:
    """A symbolic length: a sum of products of atoms without a single value. Immutable; equal expressions are the same
    object.

    Attributes:
        terms: pairs of a product of atoms and its coefficient, in canonical order; the empty product is the constant.
        space: holds the interned expressions with its symbols.
        at: values at `bounds.POINTS`, as in an `Atom`.
    """

    __slots__ = ("_divisor", "_range", "_text", "at", "space", "terms")

    terms: Terms
    space: ExpressionSpace
    at: tuple[int, ...]

    @property
    def scope(self) -> Scope:
        """The scope in which this thread uses the symbols."""
        return self.space.scope

    @property
    def low(self) -> int | None:
        """The least value; None for no bound."""
        return (self._range or self._bounded())[0]

    @property
    def high(self) -> int | None:
        """The largest value; None for no bound."""
        return (self._range or self._bounded())[1]

    def _bounded(self) -> tuple[int | None, int | None]:
        """Compute and cache the range on first use, since few ranges are ever read."""
        found = interval(self.terms)
        if len({c > 0 for m, c in self.terms if m}) > 1:
            found = tightened(self.terms, found)
        self._range = found
        return found

    @property
    def divisor(self) -> int:
        """An integer that divides every value."""
        if self._divisor is None:
            self._divisor = gcd(*(c * prod([a.divisor for a in m]) for m, c in self.terms))
        return self._divisor

    def __add__(self, other: object) -> SharedLength:
        if not isinstance(other, (int, Dim)):
            return _as_integer(other, self.__add__)
        sums = self.space.sums
        found = sums.get((self, other))
        if found is None:
            more = other.terms if isinstance(other, Dim) else (((), int(other)),)
            found = sums[self, other] = polynomial([*self.terms, *more])
        return found

    __radd__ = __add__

    def __neg__(self) -> SharedLength:
        return self * -1

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: object) -> SharedLength:
        if isinstance(other, Dim):
            return _difference(self, other, self.space)
        if isinstance(other, int):
            return self + -other if other else self
        return _as_integer(other, self.__sub__)

    def __rsub__(self, other: object) -> SharedLength:
        return _difference(other, self, self.space) if isinstance(other, int) else _as_integer(other, self.__rsub__)

    def __mul__(self, other: object) -> SharedLength:
        if not isinstance(other, (int, Dim)):
            return _as_integer(other, self.__mul__)
        products = self.space.products
        found = products.get((self, other))
        if found is None:
            factors = other.terms if isinstance(other, Dim) else (((), int(other)),)
            found = polynomial([(product_of(m, n), c * d) for m, c in self.terms for n, d in factors])
            products[self, other] = found
        return found

    __rmul__ = __mul__

    def __pow__(self, exponent: SupportsInt) -> Length:
        return prod([self] * int(exponent))

    def __floordiv__(self, other: object) -> SharedLength:
        return (
            OPERATIONS["floordiv"](self, other)
            if isinstance(other, (int, Dim))
            else _as_integer(other, self.__floordiv__)
        )

    def __rfloordiv__(self, other: object) -> Length:
        return OPERATIONS["floordiv"](other, self) if isinstance(other, int) else _as_integer(other, self.__rfloordiv__)

    def __mod__(self, other: object) -> Length:
        return OPERATIONS["mod"](self, other) if isinstance(other, (int, Dim)) else _as_integer(other, self.__mod__)

    def __rmod__(self, other: object) -> Length:
        return OPERATIONS["mod"](other, self) if isinstance(other, int) else _as_integer(other, self.__rmod__)

    def __divmod__(self, other: object) -> tuple[Length, Length]:
        return self // other, self % other

    def __abs__(self) -> Length:
        return OPERATIONS["max"](self, -self)

    def __lshift__(self, other: SupportsInt) -> Length:
        return self * (1 << int(other))

    def __rshift__(self, other: SupportsInt) -> Length:
        return self // (1 << int(other))

    def bit_length(self) -> SharedLength:
        """Return the number of bits of the absolute value, as `int.bit_length`."""
        ends = [None if one is None else abs(one).bit_length() for one in (self.low, self.high)]
        known = self.low is not None and self.low >= 0
        low, high = (ends[0], ends[1]) if known else (0, None)
        return low if low is not None and low == high else of_atom("bit_length", (self,), low, high, 1)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if asks_nothing():
            return False
        if not isinstance(other, (int, Dim)):
            return _plain(other) and self == int(other)  # type: ignore[call-overload]
        return _are_equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return _is_less(self, other)

    def __gt__(self, other: object) -> bool:
        return _is_less(other, self)

    def __le__(self, other: object) -> bool:
        return not _is_less(other, self)

    def __ge__(self, other: object) -> bool:
        return not _is_less(self, other)

    def __bool__(self) -> bool:
        return not _are_equal(self, 0)

    __hash__ = object.__hash__

    def __index__(self) -> int:
        raise SymbolicLengthError(f"the length {self} is known when the program runs, and a number is needed here")

    __int__ = __index__

    def __float__(self) -> float:
        raise SymbolicLengthError(f"the length {self} is known when the program runs, and a number is needed here")

    def __truediv__(self, other: object) -> NoReturn:
        raise SymbolicLengthError(f"the length {self} has no quotient that is no integer: use //, or evaluate it")

    __rtruediv__ = __truediv__

    def __str__(self) -> str:
        waiting = [self]
        while waiting:  # operands first: expressions may be nested deeper than Python's calls
            one = waiting[-1]
            operands = [o for monomial, _ in one.terms for atom in monomial for o in atom.operands]
            lacking = [o for o in operands if isinstance(o, Dim) and o._text is None]
            if not lacking:
                one._text = one._text or _sum_text(one.terms)
                waiting.pop()
            waiting += lacking
        return self._text or ""

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    _text: str | None
    _range: tuple[int | None, int | None] | None
    _divisor: int | None


Length = int | Dim


SharedLength = Any
"""A `Length` that is a plain integer where all that it is computed from are: in records shared with back ends without
symbolic lengths, and as the result of arithmetic. Type checkers cannot tell which."""


def is_symbolic(value: object) -> bool:
    """Return whether a value is a symbolic length."""
    return isinstance(value, Dim)


def range_of(length: Length) -> tuple[int | None, int | None]:
    """Return the least and the largest value; None for no bound."""
    return (length.low, length.high) if isinstance(length, Dim) else (length, length)


def common_divisor(length: Length) -> int:
    """Return an integer that divides every value; 0 for 0."""
    return length.divisor if isinstance(length, Dim) else abs(length)


def _difference(a: Length, b: Dim, space: ExpressionSpace) -> SharedLength:
    """Return ``a - b``, without the expression ``-b``."""
    found = space.differences.get((a, b))
    if found is None:
        terms = a.terms if isinstance(a, Dim) else (((), int(a)),)
        found = space.differences[a, b] = polynomial([*terms, *[(m, -c) for m, c in b.terms]])
    return found


def _as_integer(value: object, function: Callable[[int], T]) -> T:
    """Apply a method to an integer of another type, such as NumPy's."""
    return function(int(value)) if _plain(value) else NotImplemented


def _plain(value: object) -> TypeGuard[SupportsIndex]:
    return hasattr(value, "__index__") and not isinstance(value, Dim) and getattr(value, "ndim", 0) == 0


def _answer(condition: object) -> bool:
    return condition.scope.ask(condition) if isinstance(condition, Dim) else bool(condition)


def _are_equal(a: object, b: object) -> bool:
    """Answer whether two lengths are equal; an undecided answer records a guard."""
    return _answer(OPERATIONS["equal"](a, b))


def _is_less(a: object, b: object) -> bool:
    """Answer whether ``a < b``; an undecided answer records a guard."""
    return _answer(OPERATIONS["less"](a, b))


def is_positive(length: Length) -> bool:
    """Return whether a length is above 0 for all symbol values."""
    return always_from(length, 1) if isinstance(length, Dim) else length > 0


def always_from(dim: Dim, least: int) -> bool:
    """Return whether a length is at least ``least`` for all symbol values."""
    if min(dim.at) < least:
        return False
    low = dim.low
    return low is not None and low >= least


def always_below(dim: Dim, end: int) -> bool:
    """Return whether a length is less than ``end`` for all symbol values."""
    if max(dim.at) >= end:
        return False
    high = dim.high
    return high is not None and high < end


def product_of(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=number_of)) if a and b else a or b


def number_of(atom: Atom) -> int:
    return atom.number


def _order(term: tuple[Monomial, int]) -> tuple[int, list[int]]:
    return -len(term[0]), [atom.number for atom in term[0]]


def polynomial(terms: Sequence[tuple[Monomial, int]]) -> SharedLength:
    """Return the sum of terms in canonical form."""
    collected: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        collected[monomial] = collected.get(monomial, 0) + coefficient
    own = [(m, c) for m, c in collected.items() if c]
    if not own:
        return 0
    if len(own) == 1 and not own[0][0]:
        return own[0][1]
    own.sort(key=_order)
    return _interned(tuple(own))


def _interned(terms: Terms) -> Length:
    """Return the interned sum of terms in canonical form."""
    space = terms[0][0][0].space
    found = space.interned.get(terms)
    if found is None:
        found = space.interned.setdefault(terms, _made(terms, space))
    at = found.at
    if at.count(at[0]) == len(at) and found.low is not None and found.low == found.high and not _is_symbol(found):
        return found.low
    return found


def _made(terms: Terms, space: ExpressionSpace) -> Dim:
    made = object.__new__(Dim)
    made.terms = terms
    made._text = made._range = made._divisor = None
    made.space = space
    if len(terms) > 1 and any(atom.space is not space for m, _ in terms for atom in m):
        raise SymbolicLengthError(f"lengths of different programs in one expression: {made}")
    made.at = values_at_points(terms)
    return made


def content_of(dim: Dim) -> int:
    """Return the greatest common divisor of all coefficients except the constant."""
    return gcd(*(c for m, c in dim.terms if m))


def constant_of(dim: Dim) -> int:
    monomial, coefficient = dim.terms[-1]
    return 0 if monomial else coefficient


def of_atom(kind: str, operands: tuple[Length, ...], low: int | None, high: int | None, divisor: int) -> SharedLength:
    """Return the expression of a single operation, interned in the operands' space."""
    space = next(o.space for o in operands if isinstance(o, Dim))
    key = _Key((kind, *operands))
    atom = space.atoms.get(key)
    if atom is None:
        made = Atom(kind, operands, low, high, divisor, space)
        made.own = _interned((((made,), 1),))
        atom = space.atoms.setdefault(key, made)
    return atom.own


class _Key:
    """The key of an atom. It compares operands by identity, so a look-up records no guards."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Key) or len(self.parts) != len(other.parts):
            return False
        return all(
            a is b or (type(a) is type(b) and type(a) is not Dim and a == b) for a, b in zip(self.parts, other.parts)
        )


def single_atom(length: Length) -> Atom | None:
    """Return the single atom that an expression consists of, or None."""
    if not isinstance(length, Dim) or len(length.terms) > 1:
        return None
    monomial, coefficient = length.terms[0]
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def place_of(length: Length) -> tuple[int, object]:
    """Return a sort key for the canonical order of operands: plain integers first."""
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


LONGEST_TEXT = 1000
"""Most characters of an operand in the text of an expression; a longer operand is written as ``...``. Expressions share
operands: after 36 clipped slices of one axis the whole text has hundreds of megabytes."""


def _operand_text(operand: object) -> str:
    text = str(operand)
    return text if len(text) <= LONGEST_TEXT else "..."


def _atom_text(atom: Atom) -> str:
    if atom.kind == "symbol":
        return atom.name
    if atom.kind in _SIGNS:
        terms = atom.operands[0].terms  # type: ignore[union-attr]
        sides = [_sum_text([(m, abs(c)) for m, c in terms if c * sign > 0]) for sign in (1, -1)]
        left, right = map(_operand_text, sides)
        return f"({left} {_SIGNS[atom.kind]} {right})"
    if atom.kind == "all":
        return f"({' and '.join(map(_operand_text, atom.operands))})"
    if atom.kind in ("floordiv", "mod"):
        sign = "//" if atom.kind == "floordiv" else "%"
        operands = [(o, _operand_text(o)) for o in atom.operands]
        left, right = (text if isinstance(o, int) or _is_symbol(o) else f"({text})" for o, text in operands)
        return f"({left} {sign} {right})"
    return f"{atom.kind}({', '.join(map(_operand_text, atom.operands))})"


_SIGNS = {"negative": "<", "zero": "==", "nonzero": "!="}


def _sum_text(terms: Sequence[tuple[Monomial, int]]) -> str:
    """Return the text of a sum; a negated condition is written as ``not`` and the condition."""
    if len(terms) == 2 and not terms[1][0] and (terms[0][1], terms[1][1]) == (-1, 1):
        (atom, *more) = terms[0][0]
        if not more and atom.kind in (*_SIGNS, "all"):
            return f"not {_atom_text(atom)}"
    return " + ".join(_term_text(m, c) for m, c in terms).replace("+ -", "- ") or "0"


def _is_symbol(dim: Dim) -> bool:
    (monomial, coefficient), *more = dim.terms
    return not more and coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "symbol"
