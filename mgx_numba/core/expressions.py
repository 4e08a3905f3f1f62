"""Evaluation of symbolic expressions, and substitution of their symbols. See `core.dim`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .bounds import FUNCTIONS, values_of_operation, values_of_sum
from .conditions import all_of, equal, less, maximum, minimum, negate, select
from .polynomials import Atom, Dim, Length, SharedLength


def of_operation(kind: str, operands: Sequence[object]) -> object:
    """Return the length that an atom's operation gives for ``operands``."""
    return _BUILDERS[kind](*operands)


def operand_count(kind: str) -> int:
    """Return the number of operands of an atom's operation; 2 for ``all``, which may have more."""
    return _OPERANDS.get(kind, 2)


TYPICAL = 48
"""Typical value of a symbol, for orderings that affect no result. It is no power of two, so alignment is not
assumed."""


def typical(length: Length) -> int:
    """Return the expression's value at fixed typical lengths, which do not depend on the example lengths.

    An expression counts as 1 where its value is 0: typical bounds of a slice may leave no element, and a stride of 0 is
    a broadcast's.
    """
    if not isinstance(length, Dim):
        return length
    usual = length.scope.usual
    return evaluate(length, usual, usual) or 1


def usual_length(symbol: Dim, place: int) -> int:
    """Return the typical length of symbol number ``place`` of a scope."""
    return min(max(TYPICAL + place, symbol.low or 0), symbol.high or TYPICAL + place)


def evaluate(length: Length, values: Mapping[Any, int], known: dict[Dim, int] | None = None) -> int:
    """Return an expression's value.

    Args:
        length: the expression; a plain integer is its own value.
        values: values of the symbols, or of their atoms.
        known: cache of values for the same symbols, which is extended.
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


class SampleValues:
    """Values of expressions for several assignments of their symbols, each expression evaluated once for all of them.

    Args:
        samples: values of all symbols that the expressions have.
    """

    def __init__(self, samples: Sequence[Mapping[Dim, int]]) -> None:
        self.samples = samples
        self._known: dict[Dim, Sequence[int]] = {}

    def of(self, length: Length) -> Sequence[int]:
        """Return the value of an expression for each sample."""
        if not isinstance(length, Dim):
            return [length] * len(self.samples)
        found = self._known.get(length)
        if found is None:
            found = self._known[length] = values_of_sum(length.terms, len(self.samples), self._of_atom)
        return found

    def at(self, number: int) -> Callable[[Length], int]:
        """Return the function of an expression that is its value for one sample."""
        return lambda length: self.of(length)[number]

    def _of_atom(self, atom: Atom) -> Sequence[int]:
        own = atom.own
        found = self._known.get(own)
        if found is None:
            if atom.kind == "symbol":
                found = [sample[own] for sample in self.samples]
            else:
                found = values_of_operation(atom.kind, [self.of(operand) for operand in atom.operands])
            self._known[own] = found
        return found


def hint(length: Length) -> int:
    """Return an expression's value for the example lengths, without recording a guard.

    The value may only decide between alternatives that are correct for all lengths, such as the order of two buffers.
    """
    return length.scope.value(length) if isinstance(length, Dim) else length


def _atom_value(atom: Atom, values: Mapping[object, int], known: dict[Dim, int]) -> int:
    if atom.kind == "symbol":
        found = values.get(atom)
        return values[atom.own] if found is None else found
    if atom.kind == "select":
        chosen = 1 if evaluate(atom.operands[0], values, known) else 2
        return evaluate(atom.operands[chosen], values, known)
    operands = [one if type(one) is int else evaluate(one, values, known) for one in atom.operands]
    return FUNCTIONS[atom.kind](*operands)


_BUILDERS: dict[str, Callable[..., object]] = {
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": minimum, "max": maximum, "select": select,
    "negative": lambda a: less(a, 0), "zero": lambda a: equal(a, 0), "nonzero": lambda a: negate(equal(a, 0)),
    "all": all_of, "bit_length": lambda a: a.bit_length(),
}  # fmt: skip
_OPERANDS = {"select": 3, "negative": 1, "zero": 1, "nonzero": 1, "bit_length": 1}
"""Number of operands of operations that do not have two."""


def substitute(
    length: Length, replacements: Mapping[Dim, Length], known: dict[Dim, object] | None = None
) -> SharedLength:
    """Return an expression with symbols replaced by other expressions; symbols without a replacement stay."""
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
                    term = term * replacements.get(atom.own, atom.own)
                else:
                    term = term * _BUILDERS[atom.kind](*(substitute(o, replacements, known) for o in atom.operands))
            found = found + term
        known[length] = found
    return found


def symbols_of(lengths: Iterable[object]) -> list[Dim]:
    """Return the symbols in expressions, each once; plain values have none."""
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
                    found[atom.own] = None
                waiting += (one for one in atom.operands if isinstance(one, Dim))
    return sorted(found, key=lambda s: s.terms[0][0][0].number)
