"""Canonical quotients and remainders of symbolic lengths. See `core.dim`."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from .bounds import quotient_of_products, quotient_range
from .polynomials import (
    OPERATIONS,
    Dim,
    Length,
    Monomial,
    SharedLength,
    common_divisor,
    constant_of,
    content_of,
    is_positive,
    number_of,
    of_atom,
    polynomial,
    range_of,
)


def ceil_div(a: Length, b: Length) -> SharedLength:
    """Return ``a / b``, rounded up."""
    if type(b) is int:
        return -(-a // b)
    if isinstance(b, Dim) and is_positive(b):
        return (a - 1) // b + 1  # this form has least value 1 where a has
    return -(-a // b)


def exact_quotient(a: Length, b: Length) -> SharedLength:
    """Return ``a // b`` if ``b`` divides ``a`` for all symbol values and is not the constant 0; else None. No guard is
    recorded.

    Where a symbolic ``b`` is 0, so is ``a``, and the product of the quotient and ``b`` is still ``a``.
    """
    if isinstance(b, Dim):
        return quotient_if_exact(a, b)
    return a // b if b and common_divisor(a) % b == 0 else None


def floordiv(a: Length, b: Length) -> Length:
    space = a.space if isinstance(a, Dim) else b.space if isinstance(b, Dim) else None
    if space is None:
        return a // b
    found = space.quotients.get((a, b))
    if found is None:
        found = space.quotients[a, b] = _quotient(a, b)
    return found


def _quotient(a: Length, b: Length) -> Length:
    if isinstance(b, int):
        return _divided(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    quotient = quotient_if_exact(a, b)
    if quotient is not None:
        return quotient
    if isinstance(a, Dim) and b.low is not None and b.low > 0:
        factor = _common_factor([*a.terms, *b.terms])
        if factor is not None:
            return quotient_if_exact(a, factor) // quotient_if_exact(b, factor)
        whole = _whole_part(a, b)
        if whole is not None:
            return whole + (a - whole * b) // b
        nested = _nested(a)
        if nested is not None:
            return nested[0] // (nested[1] * b)
    low, high = quotient_range(range_of(a), range_of(b))
    if low is not None and low == high:
        return low
    return of_atom("floordiv", (a, b), low, high, 1)


def _divided(a: Length, b: int) -> Length:
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
    if rest.terms[0][1] < 0:  # x // b == -((b - 1 - x) // b): one canonical sign
        return whole - _divided(b - 1 - rest, b)
    low, high = quotient_range((rest.low, rest.high), (b, b))
    if low is not None and low == high:
        return whole + low
    nested = _nested(rest)
    if nested is not None:
        return whole + nested[0] // (nested[1] * b)
    shared = gcd(content_of(rest), b)
    if shared > 1:  # (d*x + c) // (d*e) is (x + c//d) // e
        reduced = polynomial([(m, c // shared) for m, c in rest.terms])
        return whole + _divided(reduced, b // shared)
    return whole + of_atom("floordiv", (rest, b), low, high, 1)


def _split(a: Dim, b: int) -> tuple[Length, Length]:
    """Split ``a`` into a quotient, with coefficients rounded toward 0, and a rest whose constant is not negative."""
    terms = [(m, c // b if c > 0 or not m else -(-c // b)) for m, c in a.terms]
    whole = polynomial([(m, c) for m, c in terms if c])
    return whole, a - whole * b


def _nested(dim: Dim) -> tuple[Length, Length] | None:
    """Return ``(x + y*b, b)`` for an expression ``x // b + y`` with a positive ``b``; None for others."""
    for monomial, coefficient in dim.terms:
        if coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "floordiv":
            a, b = monomial[0].operands
            if is_positive(b):
                return (dim - polynomial([(monomial, 1)])) * b + a, b
    return None


def _common_factor(terms: Sequence[tuple[Monomial, int]]) -> Dim | None:
    """Return the product of the atoms of least value 1 or more that all terms share; None if there is none."""
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
    return polynomial([(tuple(common), 1)]) if common else None


def without_factor(difference: Dim) -> Dim:
    """Return an expression of the same sign: ``difference`` without its terms' common factor."""
    factor = _common_factor(difference.terms)
    if factor is None:
        return difference
    quotient = quotient_if_exact(difference, factor)
    return quotient if isinstance(quotient, Dim) else difference


def _whole_part(a: Dim, b: Dim) -> Length | None:
    """Return the quotient of the terms of ``a`` that the single term of ``b`` divides; None if it divides no term."""
    if len(b.terms) > 1:
        return None
    ((factor, divisor),) = b.terms
    found = []
    for monomial, coefficient in a.terms:
        other = quotient_of_products(monomial, factor)
        if other is not None and coefficient % divisor == 0:
            found.append((other, coefficient // divisor))
    return polynomial(found) if found else None


def quotient_if_exact(a: Length, b: Dim) -> SharedLength:
    """Return ``a // b`` if ``b`` divides ``a`` as an expression (``b`` has one term, or both are proportional); else
    None."""
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
        return polynomial(found)
    quotient: Length = 0
    rest: Length = a
    while isinstance(rest, Dim):  # polynomial division by the leading term
        (m, c), (n, d) = rest.terms[0], b.terms[0]
        left = list(m)
        for atom in n:
            if atom not in left:
                return None
            left.remove(atom)
        if c % d:
            return None
        step = polynomial([(tuple(left), c // d)])
        quotient, following = quotient + step, rest - b * step
        if isinstance(following, Dim) and len(following.terms) > len(a.terms) + len(b.terms):
            return None
        rest = following
    return quotient if rest == 0 else None


def modulo(a: Length, b: Length) -> Length:
    if isinstance(b, int):
        if b <= 0 or not isinstance(a, Dim):
            return a - a // b * b
        return _remainder(a, b)
    if not isinstance(a, Dim) or b.low is None or b.low < 1:
        return a - a // b * b
    if quotient_if_exact(a, b) is not None:
        return 0
    factor = _common_factor([*a.terms, *b.terms])
    if factor is not None:
        return factor * (quotient_if_exact(a, factor) % quotient_if_exact(b, factor))
    whole = _whole_part(a, b)
    if whole is not None:
        return (a - whole * b) % b
    if a.low is not None and a.low >= 0 and is_positive(b - a):
        return a
    divisor = gcd(a.divisor, b.divisor)
    return of_atom("mod", (a, b), 0, None if b.high is None else b.high - divisor, divisor)


def _remainder(a: Dim, b: int) -> Length:
    """Return the remainder of the division by a plain integer, in the same form as the quotient of `_divided`."""
    _, rest = _split(a, b)
    if not isinstance(rest, Dim):
        return rest % b
    if rest.divisor % b == 0:
        return 0
    if rest.terms[0][1] < 0:
        return b - 1 - (b - 1 - rest) % b
    if rest.low is not None and rest.high is not None and rest.low >= 0 and rest.high < b:
        return rest
    shared = gcd(content_of(rest), b)
    if shared > 1:  # (d*x + c) % (d*e) is (x + c//d) % e * d + c % d
        reduced = polynomial([(m, c // shared) for m, c in rest.terms])
        return reduced % (b // shared) * shared + constant_of(rest) % shared
    divisor = gcd(rest.divisor, b)
    return of_atom("mod", (rest, b), 0, b - divisor, divisor)


def without_remainders(length: Dim) -> Length:
    """Return an expression with ``a % b`` rewritten as ``a - a//b*b``."""
    found: Length = length
    while isinstance(found, Dim):
        remainders = [atom for monomial, _ in found.terms for atom in monomial if atom.kind == "mod"]
        if not remainders:
            break
        outer = max(remainders, key=number_of)
        a, b = outer.operands
        value = a - a // b * b
        for monomial, coefficient in found.terms:
            if outer in monomial:
                others = list(monomial)
                others.remove(outer)
                found = found + polynomial([(tuple(others), coefficient)]) * value
                found = found - polynomial([(monomial, coefficient)])
    return found


OPERATIONS.update({"floordiv": floordiv, "mod": modulo})
