"""Conditions on lengths and operations that depend on them: minimum, maximum, choices. See `core.dim`."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from .polynomials import (
    OPERATIONS,
    Dim,
    Length,
    SharedLength,
    always_below,
    always_from,
    common_divisor,
    constant_of,
    content_of,
    of_atom,
    place_of,
    polynomial,
    range_of,
    single_atom,
)
from .quotients import without_factor, without_remainders


def minimum(first: Length, *others: Length) -> SharedLength:
    """Return the minimum of lengths."""
    for other in others:
        if type(first) is int is type(other):
            if other < first:
                first = other
        elif isinstance(first, Dim) or isinstance(other, Dim):
            first = _extreme("min", first, other)
        elif other < first:
            first = other
    return first


def maximum(first: Length, *others: Length) -> SharedLength:
    """Return the maximum of lengths."""
    for other in others:
        if type(first) is int is type(other):
            if other > first:
                first = other
        elif isinstance(first, Dim) or isinstance(other, Dim):
            first = _extreme("max", first, other)
        elif other > first:
            first = other
    return first


def less(a: Length, b: Length) -> SharedLength:
    """Return the condition ``a < b``: 1, 0, or an expression."""
    space = a.space if isinstance(a, Dim) else b.space if isinstance(b, Dim) else None
    if space is None:
        return int(a < b)
    found = space.lesser.get((a, b))
    if found is None:
        found = space.lesser[a, b] = _less(a, b)
    return found


def _less(a: Length, b: Length) -> Length:
    difference = a - b
    if not isinstance(difference, Dim):
        return int(difference < 0)
    if always_below(difference, 0):
        return 1
    if always_from(difference, 0):
        return 0
    if (plain := without_remainders(difference)) is not difference and not isinstance(plain, Dim):
        return int(plain < 0)
    difference = without_factor(difference)
    divisor, constant = content_of(difference), constant_of(difference)
    if divisor > 1:  # d*x + c < 0 is equivalent to x + floor(c/d) < 0
        difference = polynomial([(m, c // divisor) for m, c in difference.terms if m] + [((), constant // divisor)])
    return of_atom("negative", (difference,), 0, 1, 1)


def less_equal(a: Length, b: Length) -> SharedLength:
    """Return the condition ``a <= b``."""
    return negate(less(b, a))


def equal(a: Length, b: Length) -> SharedLength:
    """Return the condition that two lengths are equal: 1, 0, or an expression."""
    space = a.space if isinstance(a, Dim) else b.space if isinstance(b, Dim) else None
    if space is None:
        return int(a == b)
    found = space.equal.get((a, b))
    if found is None:
        found = space.equal[a, b] = _equal(a, b)
    return found


def _equal(a: Length, b: Length) -> Length:
    difference = a - b
    if not isinstance(difference, Dim):
        return int(difference == 0)
    if always_from(difference, 1) or always_below(difference, 0):
        return 0
    if (plain := without_remainders(difference)) is not difference and not isinstance(plain, Dim):
        return int(plain == 0)
    difference = without_factor(difference)
    divisor, constant = content_of(difference), constant_of(difference)
    if constant % divisor:
        return 0
    sign = -1 if difference.terms[-1][1] < 0 else 1  # canonical sign
    difference = polynomial([(m, sign * c // divisor) for m, c in difference.terms])
    return of_atom("zero", (difference,), 0, 1, 1)


def known_equal(a: Length, b: Length) -> bool:
    """Return whether two lengths are equal for all symbol values, without recording a guard."""
    if a is b:
        return True
    if type(a) is int is type(b) or not (isinstance(a, Dim) or isinstance(b, Dim)):
        return a == b
    return type(found := equal(a, b)) is int and found == 1


def known_stretched(old: Length, new: Length) -> bool:
    """Return whether ``old`` is the minimum of 1 and the symbolic length ``new``: it broadcasts to ``new``, also to 0,
    with stride 0."""
    return isinstance(old, Dim) and isinstance(new, Dim) and old is not new and known_equal(old, minimum(1, new))


def known_in(length: Length, *values: int) -> bool:
    """Return whether a length is a plain integer among ``values``, without recording a guard."""
    return not isinstance(length, Dim) and length in values


def known_less(a: Length, b: Length) -> bool:
    """Return whether ``a < b`` for all symbol values, without recording a guard."""
    if type(a) is int is type(b) or not (isinstance(a, Dim) or isinstance(b, Dim)):
        return a < b
    return type(found := less(a, b)) is int and found == 1


def known_less_equal(a: Length, b: Length) -> bool:
    """Return whether ``a <= b`` for all symbol values, without recording a guard."""
    if type(a) is int is type(b) or not (isinstance(a, Dim) or isinstance(b, Dim)):
        return a <= b
    return type(found := less(b, a)) is int and found == 0


def known_same(a: Sequence[Length], b: Sequence[Length]) -> bool:
    """Return whether two sequences hold equal lengths for all symbol values, without recording a guard."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):  # noqa: SIM110  (a generator takes twice as long, and planning asks ten thousand times)
        if x is not y and not known_equal(x, y):
            return False
    return True


def preferred(condition: Length) -> bool:
    """Return whether a condition holds, for a choice between two correct alternatives.

    If the ranges do not decide the condition, the example lengths do, without a guard.
    """
    return condition.scope.prefer(condition, False) if isinstance(condition, Dim) else bool(condition)


def permitted(condition: Length) -> bool:
    """Return whether a condition holds that only one alternative requires.

    True may add a guard; False is correct for all lengths.
    """
    return condition.scope.prefer(condition, True) if isinstance(condition, Dim) else bool(condition)


def negate(condition: Length) -> SharedLength:
    """Return the negation of a condition."""
    if isinstance(condition, Dim) and len(condition.terms) == 1 and len(condition.terms[0][0]) == 1:
        (((atom,), coefficient),) = condition.terms
        if coefficient == 1 and atom.kind == "negative":
            return less(-1, atom.operands[0])
        if coefficient == 1 and atom.kind in ("zero", "nonzero"):
            return of_atom("zero" if atom.kind == "nonzero" else "nonzero", atom.operands, 0, 1, 1)
    return 1 - condition


def all_of(*conditions: Length) -> SharedLength:
    """Return the conjunction of conditions; 1 for no condition."""
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
    return of_atom("all", tuple(sorted(found, key=place_of)), 0, 1, 1)


def any_of(*conditions: Length) -> Length:
    """Return the disjunction of conditions; 0 for no condition."""
    return negate(all_of(*(negate(one) for one in conditions)))


def select(condition: Length, a: Length, b: Length) -> SharedLength:
    """Return ``a`` where a condition holds, else ``b``."""
    if not isinstance(condition, Dim):
        return a if condition else b
    if a is b or (type(a) is int and type(b) is int and a == b):
        return a
    bounds = [range_of(a), range_of(b)]
    low = None if any(one[0] is None for one in bounds) else min(one[0] for one in bounds)  # type: ignore[type-var]
    high = None if any(one[1] is None for one in bounds) else max(one[1] for one in bounds)  # type: ignore[type-var]
    return of_atom("select", (condition, a, b), low, high, gcd(common_divisor(a), common_divisor(b)) or 1)


def _extreme(kind: str, a: Length, b: Length) -> Length:
    if a is b:
        return a
    if type(a) is type(b) is int:
        return min(a, b) if kind == "min" else max(a, b)
    extremes = (a if isinstance(a, Dim) else b).space.extremes  # type: ignore[union-attr]
    found = extremes.get((kind, a, b))
    if found is None:
        found = extremes[kind, a, b] = _found_extreme(kind, a, b)
    return found


def _found_extreme(kind: str, a: Length, b: Length) -> SharedLength:
    difference = a - b
    if not isinstance(difference, Dim):
        smaller = difference <= 0
        return a if smaller == (kind == "min") else b
    if always_below(difference, 1):
        return a if kind == "min" else b
    if always_from(difference, 0):
        return b if kind == "min" else a
    (a_low, a_high), (b_low, b_high) = range_of(a), range_of(b)
    if kind == "min":
        low = None if a_low is None or b_low is None else min(a_low, b_low)
        high = min((h for h in (a_high, b_high) if h is not None), default=None)
    else:
        low = max((h for h in (a_low, b_low) if h is not None), default=None)
        high = None if a_high is None or b_high is None else max(a_high, b_high)
    operands = tuple(sorted((a, b), key=place_of))
    return of_atom(kind, operands, low, high, gcd(common_divisor(a), common_divisor(b)) or 1)


def chosen_where(length: Length) -> list[Dim]:
    """Return, as a list, the condition of a length ``select(condition, x, 0)``; empty for any other length."""
    atom = single_atom(length)
    if atom is None or atom.kind != "select" or not known_equal(atom.operands[2], 0):
        return []
    return [condition for condition in atom.operands[:1] if isinstance(condition, Dim)]


OPERATIONS.update({"max": maximum, "equal": equal, "less": less})
