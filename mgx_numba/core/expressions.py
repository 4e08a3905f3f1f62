"""Evaluation of symbolic expressions, and substitution of their symbols. See `core.dim`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .bounds import FUNCTIONS
from .conditions import all_of, equal, less, maximum, minimum, negate, select
from .polynomials import OPERATIONS, Atom, Dim, Length, number_of, place_of, twin_of, twin_of_atom

if TYPE_CHECKING:
    from .scope import Scope


def parts_of(atom: Atom) -> tuple[Any, ...]:
    """Return the picklable parts of an atom, from which `again` rebuilds it: a symbol's number in the scope, or an
    operation."""
    if atom.kind != "symbol":
        return atom.kind, atom.operands
    return (next(k for k, s in enumerate(atom.scope.symbols) if s.terms[0][0][0] is atom),)


def again(scope: Scope, parts: Iterable[tuple[Sequence[tuple[Any, ...]], int]]) -> Any:
    """Rebuild a pickled expression."""
    found: Any = 0
    for factors, coefficient in parts:
        term: Any = coefficient
        for kind, *operands in factors:
            term = term * (_BUILDERS[kind](*operands[0]) if operands else scope.symbols[kind])
        found = found + term
    return found


def of_operation(kind: str, operands: Sequence[Any]) -> Any:
    """Return the length that an atom's operation gives for ``operands``."""
    return _BUILDERS[kind](*operands)


def operand_count(kind: str) -> int:
    """Return the number of operands of an atom's operation; 2 for ``all``, which may have more."""
    return _OPERANDS.get(kind, 2)


TYPICAL = 48
"""Typical value of a symbol, for orderings that affect no result. It is no power of two, so alignment is not
assumed."""


def typical(length: Length) -> int:
    """Return the expression's value at fixed typical lengths, which do not depend on the example lengths."""
    if not isinstance(length, Dim):
        return length
    usual = {s: min(max(TYPICAL + k, s.low or 0), s.high or TYPICAL + k) for k, s in enumerate(length.scope.symbols)}
    return evaluate(length, usual, length.scope.usual)


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


def hint(length: Length) -> int:
    """Return an expression's value for the example lengths, without recording a guard.

    The value may only decide between alternatives that are correct for all lengths, such as the order of two buffers.
    """
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
_OPERANDS = {"select": 3, "negative": 1, "zero": 1, "nonzero": 1, "bit_length": 1}
"""Number of operands of operations that do not have two."""


def substitute(length: Length, replacements: Mapping[Dim, Length], known: dict[Dim, Any] | None = None) -> Any:
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


class Twins:
    """Equal expressions of two scopes that have symbols with the same ranges in the same order.

    It is faster than `substitute`: proven ranges and canonical forms are kept, and so is every pair that is found.
    """

    def __init__(self, scope: Scope, other: Scope) -> None:
        pairs = [(a.terms[0][0][0], b.terms[0][0][0]) for a, b in zip(scope.symbols, other.symbols)]
        self._atoms = dict(pairs)
        self._original_atoms = {b: a for a, b in pairs}
        self._dims: dict[Dim, Dim] = {}
        self._originals: dict[Dim, Dim] = {}

    def renamed(self, length: Dim) -> Dim:
        """Return an expression of the first scope in the second scope."""
        return _twin(length, self._dims, self._originals, self._atoms, self._original_atoms)

    def original(self, length: Dim) -> Dim:
        """Return an expression of the second scope in the first scope."""
        return _twin(length, self._originals, self._dims, self._original_atoms, self._atoms)


def _twin(
    length: Any, dims: dict[Dim, Dim], back: dict[Dim, Dim], atoms: dict[Atom, Atom], atoms_back: dict[Atom, Atom]
) -> Any:
    """Return the twin of a length, and note it and those of its parts in both directions; a plain integer is its own
    twin."""
    if not isinstance(length, Dim):
        return length
    found = dims.get(length)
    if found is None:
        terms = []
        for monomial, coefficient in length.terms:
            for atom in monomial:
                if atom not in atoms:
                    operands = [_twin(one, dims, back, atoms, atoms_back) for one in atom.operands]
                    if atom.kind in ("min", "max", "all"):
                        operands.sort(key=place_of)
                    other = atoms[atom] = twin_of_atom(atom, tuple(operands))
                    atoms_back[other] = atom
            own = [atoms[atom] for atom in monomial]
            terms.append((tuple(sorted(own, key=number_of)), coefficient))
        found = dims[length] = twin_of(length, terms)
        back[found] = length
    return found


def symbols_of(lengths: Iterable[Any]) -> list[Dim]:
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


OPERATIONS.update({"parts": parts_of, "again": again})
