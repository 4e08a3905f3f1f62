"""Bounds of sums of products of symbols, from the symbols' ranges: least and largest values, and proofs of a sign.

`core.dim` defines sums, products and atoms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add, attrgetter, mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .polynomials import Atom, Length, Monomial, Terms

Range = tuple["int | None", "int | None"]
"""Least and largest value; None for no bound."""
Sum = dict["Monomial", int]
"""Coefficients of products of atoms."""

MOST_WORK = 128
"""Work limit of a proof, in terms; a product of n atoms counts as 2**n. Of 255 proofs found while six language models
were compiled, 251 needed less. Failing proofs would take nine tenths of the time."""
MOST_FACTORS = 6
"""Most atoms of a product that is expanded around least values: there are two terms for each subset."""


FUNCTIONS: dict[str, Callable[..., int]] = {
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0, "min": min, "max": max,
    "negative": lambda a: int(a < 0), "zero": lambda a: int(a == 0), "nonzero": lambda a: int(a != 0),
    "all": lambda *conditions: int(all(conditions)), "bit_length": lambda a: a.bit_length(),
}  # fmt: skip
"""Operations of atoms on plain integers. Division by 0 gives 0: plans evaluate all alternatives, even alternatives not
taken because a divisor is 0."""

POINTS = ((0, 0), (0, 48), (48, 0), (48, 48), (1000, 1000), (1 << 30, 1 << 30))
"""Sample values of symbols with even and with odd places, relative to their least values. A sum that is
negative at a point needs no proof attempt."""


_AT = attrgetter("at")


class AtomRanges:
    """Ranges of atoms, narrowed by facts.

    Args:
        facts: sums that are never negative.
    """

    def __init__(self, facts: Sequence[Terms] = ()) -> None:
        self.given = tuple(facts)
        self.facts = [dict(fact) for fact in facts]
        self.narrower: dict[Atom, Range] = {}
        self._known: dict[Atom, Range] = {}
        for fact in facts:
            self._narrow(fact)
        rows = zip(*map(values_at_points, facts)) if facts else ((),) * len(POINTS)
        self._inside = [min(row, default=0) >= 0 for row in rows]

    def refute(self, terms: Iterable[tuple[Monomial, int]]) -> bool:
        """Return whether a sum is negative at one of `POINTS` at which the facts hold."""
        values = values_of_sum(terms, len(POINTS), _AT)
        return min(values) < 0 and any(value < 0 and inside for value, inside in zip(values, self._inside))

    def _narrow(self, fact: Terms) -> None:
        """Narrow an atom's range by the fact ``c*atom + k >= 0``; ignore facts of other forms."""
        (monomial, c), *more = fact
        if len(monomial) != 1 or len(more) > 1 or (more and more[0][0]):
            return
        (atom,), k = monomial, more[0][1] if more else 0
        low, high = self.narrower.get(atom, (atom.low, atom.high))
        if c > 0:
            low = -(k // c) if low is None else max(low, -(k // c))
        else:
            high = k // -c if high is None else min(high, k // -c)
        self.narrower[atom] = low, high

    def of(self, atom: Atom) -> Range:
        """Return the range of an atom."""
        if not self.narrower:
            return atom.low, atom.high
        found = self._known.get(atom)
        if found is None:
            own = self.narrower.get(atom, (atom.low, atom.high))
            found = self._known[atom] = _both(own, self._of_operation(atom))
        return found

    def _of_operation(self, atom: Atom) -> Range:
        if atom.kind not in ("floordiv", "min", "max", "select"):
            return None, None
        a, b = (interval(_terms(one), self) for one in atom.operands[-2:])
        if atom.kind == "floordiv":
            return quotient_range(a, b)
        return extreme_range(atom.kind, a, b)


OWN = AtomRanges()
"""The ranges of atoms without further facts."""


def quotient_range(a: Range, b: Range) -> Range:
    """Return the range of a quotient; unbounded unless the divisor is positive, or neither operand is ever negative."""
    (low, high), (least, most) = a, b
    if least == 0 and low is not None and low >= 0:
        return 0, high  # division by 0 gives 0
    if least is None or least <= 0:
        return None, None
    ends: list[int | None] = []
    for end, towards, away in ((low, most, least), (high, least, most)):
        divisor = towards if end is None or end >= 0 else away
        if end is None:
            ends.append(None)
        else:  # an unbounded divisor drives the quotient to 0 or -1
            ends.append(end // divisor if divisor is not None else (0 if end >= 0 else -1))
    return ends[0], ends[1]


def extreme_range(kind: str, a: Range, b: Range) -> Range:
    """Return the range of the minimum, the maximum, or either ("select") of two numbers."""
    lows, highs = [one for one in (a[0], b[0]) if one is not None], [one for one in (a[1], b[1]) if one is not None]
    low = (max(lows) if kind == "max" else min(lows)) if len(lows) == 2 or (lows and kind == "max") else None
    high = (min(highs) if kind == "min" else max(highs)) if len(highs) == 2 or (highs and kind == "min") else None
    return low, high


def interval(terms: Iterable[tuple[Monomial, int]], ranges: AtomRanges = OWN) -> Range:
    """Return bounds of a sum by interval arithmetic on its products."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in terms:
        least, most = _product_range(monomial, ranges)
        ends = (least, most) if coefficient > 0 else (most, least)
        low = None if low is None or ends[0] is None else low + coefficient * ends[0]
        high = None if high is None or ends[1] is None else high + coefficient * ends[1]
    return low, high


def _product_range(monomial: Monomial, ranges: AtomRanges) -> Range:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        least, most = ranges.of(atom)
        if low is not None and low >= 0 and least is not None and least >= 0:
            low = low * least
            high = None if high is None or most is None else high * most
        elif None in (low, high, least, most):
            single = len(monomial) == 1
            return (least, most) if single else (None, None)
        else:
            ends = [x * y for x in (low, high) for y in (least, most)]  # type: ignore[operator]
            low, high = min(ends), max(ends)
    return low, high


def tightened(terms: Terms, found: Range) -> Range:
    """Narrow a sum's range where its sign can be proven."""
    low, high = found
    if (low is None or low < 0) and never_negative(terms):
        low = 1 if never_negative(_less_one(terms)) else 0
    if low is not None and low > 0:
        return low, high
    if (high is None or high > 0) and never_negative(_negative(terms)):
        high = -1 if low != 0 and never_negative(_less_one(_negative(terms))) else 0
    return low, high


def never_negative(terms: Terms, ranges: AtomRanges = OWN) -> bool:
    """Return whether a sum is proven to be at least 0."""
    return _Proof(ranges).holds(dict(terms))


def values_at_points(terms: Terms) -> tuple[int, ...]:
    """Return the values of a sum at `POINTS`."""
    return tuple(values_of_sum(terms, len(POINTS), _AT))


def values_of_sum(
    terms: Iterable[tuple[Monomial, int]], count: int, of: Callable[[Atom], Sequence[int]]
) -> Sequence[int]:
    """Return the ``count`` values of a sum, from those of its atoms."""
    found: Sequence[int] | None = None
    for monomial, coefficient in terms:
        values: Sequence[int] = (coefficient,) * count
        if monomial:
            values = of(monomial[0])
            for atom in monomial[1:]:
                values = list(map(mul, values, of(atom)))
            if coefficient != 1:
                values = [coefficient * value for value in values]
        found = values if found is None else list(map(add, found, values))
    return (0,) * count if found is None else found


def values_of_atom(atom: Atom) -> tuple[int, ...]:
    """Return the values of an atom at `POINTS`."""
    return values_of_operation(atom.kind, [(o,) * len(POINTS) if isinstance(o, int) else o.at for o in atom.operands])


def values_of_operation(kind: str, operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the values of an atom's operation on several values of each operand."""
    if kind == "select":
        return tuple([yes if chosen else no for chosen, yes, no in zip(*operands)])
    return tuple(map(FUNCTIONS[kind], *operands))


def values_of_symbol(low: int, high: int | None, place: int) -> tuple[int, ...]:
    """Return the values at `POINTS` of the symbol that is the scope's number ``place``."""
    more = [point[place % 2] for point in POINTS]
    values = [low + (one + place % 97 if one else 0) for one in more]
    return tuple(values if high is None else [min(value, high) for value in values])


def facts_of(condition: Terms, answer: bool, ranges: AtomRanges = OWN) -> list[Terms]:
    """Return sums that are never negative if a condition has the given answer."""
    (monomial, coefficient), *more = condition
    if len(monomial) != 1:
        return []
    if coefficient == -1 and more == [((), 1)]:
        return facts_of(((monomial, 1),), not answer, ranges)
    (atom,) = monomial
    if coefficient != 1 or more:
        return []
    if atom.kind == "all":
        return [fact for one in atom.operands for fact in facts_of(_terms(one), True, ranges)] if answer else []
    if atom.kind == "negative":
        found = _terms(atom.operands[0])
        return [_less_one(_negative(found))] if answer else [found]
    if atom.kind not in ("zero", "nonzero"):
        return []
    found = _terms(atom.operands[0])
    both = found, _negative(found)
    if answer == (atom.kind == "zero"):
        return list(both)
    return [_less_one(one) for one in both if never_negative(one, ranges)]


def decided(condition: Terms, ranges: AtomRanges) -> bool | None:
    """Return the answer to a condition; None if the ranges do not decide it."""
    (monomial, coefficient), *more = condition
    if len(monomial) != 1:
        return None
    if coefficient == -1 and more == [((), 1)]:
        opposite = decided(((monomial, 1),), ranges)
        return None if opposite is None else not opposite
    (atom,) = monomial
    if coefficient != 1 or more:
        return None
    if atom.kind == "all":
        answers = [decided(_terms(one), ranges) for one in atom.operands]
        return False if False in answers else None if None in answers else True
    if atom.kind not in ("negative", "zero", "nonzero"):
        return None
    found = _terms(atom.operands[0])
    if never_negative(found, ranges):
        if atom.kind == "negative":
            return False
        if never_negative(_negative(found), ranges):
            return atom.kind == "zero"
        return atom.kind == "nonzero" if never_negative(_less_one(found), ranges) else None
    if never_negative(_less_one(_negative(found)), ranges):
        return atom.kind != "zero"
    return None


class _Proof:
    def __init__(self, ranges: AtomRanges) -> None:
        self.ranges = ranges
        self.work = 0

    def holds(self, terms: Sum, kept: frozenset[Atom] = frozenset()) -> bool:
        """Return whether a sum is proven never to be negative; operations in ``kept`` are not expanded, only their
        ranges are used."""
        if self.ranges.refute(terms.items()):
            return False
        self.work += sum([1 << len(monomial) for monomial in terms])
        if self.work > MOST_WORK:
            return False
        if self._low(terms):
            return True
        for fact in self.ranges.facts:
            if any(self.holds(rest, kept) for rest in self._less_fact(terms, fact)):
                return True
            if self.work > MOST_WORK:
                return False
        operations = {a for m in terms for a in m if a.operands and a not in kept}
        for atom in sorted(operations, key=lambda a: -a.number):
            if self.work > MOST_WORK:
                break
            kept |= {atom}
            if self._without(terms, atom, kept):
                return True
        return False

    def _low(self, terms: Sum) -> bool:
        """Return whether ranges prove it: of atoms, or of atoms less their least values.

        For example, ``b*s - b`` is ``b' + b'*s'`` for ``b = 1 + b'`` and ``s = 1 + s'``.
        """
        low = interval(terms.items(), self.ranges)[0]
        if low is not None and low >= 0:
            return True
        if max(map(len, terms), default=0) < 2:  # without products the second bound is the first
            return False
        above: Sum = {}
        for monomial, coefficient in terms.items():
            if len(monomial) > MOST_FACTORS:
                return False
            products: Sum = {(): coefficient}
            for atom in monomial:
                least = self.ranges.of(atom)[0]
                if least is None:
                    return False
                for m, c in list(products.items()):
                    products[m] = c * least
                    bigger = _times(m, (atom,))
                    products[bigger] = products.get(bigger, 0) + c
            _add(above, products)
        low = 0
        for monomial, coefficient in above.items():
            if not monomial:
                low += coefficient
            elif coefficient < 0:
                for atom in monomial:
                    least, most = self.ranges.of(atom)
                    if most is None:
                        return False
                    coefficient *= most - (least or 0)
                low += coefficient
        return low >= 0

    def _less_fact(self, terms: Sum, fact: Sum) -> Iterable[Sum]:
        """Yield the sums that remain after subtracting a positive multiple of a fact; if one is never negative, so is
        ``terms``."""
        for m, c in fact.items():
            if c >= 0 or not m:
                continue
            for own, coefficient in terms.items():
                factor = quotient_of_products(own, m)
                if coefficient < 0 and coefficient % c == 0 and factor is not None and self._positive(factor):
                    rest = dict(terms)
                    _add(rest, {_times(factor, n): -(coefficient // c) * d for n, d in fact.items()})
                    yield {n: d for n, d in rest.items() if d}

    def _without(self, terms: Sum, atom: Atom, kept: frozenset[Atom]) -> bool:
        """Return whether the sum is proven after replacing an operation's atom by its bounds or its alternatives."""
        own = {m: c for m, c in terms.items() if atom in m}
        if any(m.count(atom) > 1 for m in own):
            return False
        a, b = (dict(_terms(one)) for one in atom.operands[-2:]) if len(atom.operands) > 1 else ({}, {})
        if atom.kind in ("min", "max", "select"):
            bound = -1 if atom.kind == "min" else 1 if atom.kind == "max" else 0
            one_is_enough = all(c * bound > 0 and self._positive(_other(m, atom)) for m, c in own.items())
            if atom.kind == "select":
                return all(self._where(terms, atom, answer, one, kept) for answer, one in ((True, a), (False, b)))
            enough = any if one_is_enough else all
            return enough(self.holds(self._replaced(terms, atom, one, one), kept) for one in (a, b))
        if atom.kind not in ("floordiv", "mod") or not all(self._positive(_other(m, atom)) for m in own):
            return False
        least = interval(b.items(), self.ranges)[0]
        if least is None or least < 1:
            return False
        if atom.kind == "mod":  # 0 <= a % b <= min(a, b - 1)
            ends = [{**b, (): b.get((), 0) - 1}]
            low = interval(a.items(), self.ranges)[0]
            ends += [a] if low is not None and low >= 0 else []
            return any(self.holds(self._replaced(terms, atom, {}, end), kept) for end in ends)
        # (a - b + 1) / b <= a // b <= a / b; for integers, x >= 0 is equivalent to b*x + b - 1 >= 0.
        smallest = dict(a)
        _add(smallest, {m: -c for m, c in b.items()})
        _add(smallest, {(): 1})
        found = self._replaced(terms, atom, smallest, a, b)
        _add(found, b)
        _add(found, {(): -1})
        return self.holds({m: c for m, c in found.items() if c}, kept)

    def _where(self, terms: Sum, atom: Atom, answer: bool, chosen: Sum, kept: frozenset[Atom]) -> bool:
        """Return whether the sum is proven under one answer to the condition of a choice."""
        outer = self.ranges
        self.ranges = AtomRanges([*outer.given, *facts_of(_terms(atom.operands[0]), answer)])
        try:
            return self.holds(self._replaced(terms, atom, chosen, chosen), kept)
        finally:
            self.ranges = outer

    def _replaced(self, terms: Sum, atom: Atom, low: Sum, high: Sum, scale: Sum | None = None) -> Sum:
        """Return the sum times ``scale``, with the atom replaced by ``low`` in added and by ``high`` in subtracted
        terms."""
        found: Sum = {}
        for monomial, coefficient in terms.items():
            if atom in monomial:
                other, factor = _other(monomial, atom), low if coefficient > 0 else high
            else:
                other, factor = monomial, scale if scale is not None else {(): 1}
            _add(found, {_times(other, m): coefficient * c for m, c in factor.items()})
        return {m: c for m, c in found.items() if c}

    def _positive(self, monomial: Monomial) -> bool:
        low = _product_range(monomial, self.ranges)[0]
        return low is not None and low >= 0


def _terms(length: Length) -> Terms:
    return (((), length),) if isinstance(length, int) else length.terms


def _less_one(terms: Terms) -> Terms:
    found = dict(terms)
    _add(found, {(): -1})
    return tuple(found.items())


def _negative(terms: Terms) -> Terms:
    return tuple([(m, -c) for m, c in terms])


def _add(terms: Sum, more: Sum) -> None:
    for monomial, coefficient in more.items():
        terms[monomial] = terms.get(monomial, 0) + coefficient


def _times(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=lambda atom: atom.number)) if a and b else a or b


def _other(monomial: Monomial, atom: Atom) -> Monomial:
    """Return a product without one occurrence of an atom."""
    place = monomial.index(atom)
    return monomial[:place] + monomial[place + 1 :]


def quotient_of_products(a: Monomial, b: Monomial) -> Monomial | None:
    """Return ``a / b`` for products of atoms; None if ``b`` is not a factor of ``a``."""
    left = list(a)
    for atom in b:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _both(a: Range, b: Range) -> Range:
    lows, highs = [one for one in (a[0], b[0]) if one is not None], [one for one in (a[1], b[1]) if one is not None]
    return max(lows, default=None), min(highs, default=None)
