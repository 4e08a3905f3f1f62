"""Values of symbolic expressions, and others in the place of their symbols. See `core.dim`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .bounds import FUNCTIONS
from .conditions import all_of, equal, less, maximum, minimum, negate, select
from .polynomials import OPERATIONS, Atom, Dim, Length

if TYPE_CHECKING:
    from .scope import Scope

__all__ = [
    "TYPICAL",
    "again",
    "evaluate",
    "hint",
    "of_operation",
    "operand_count",
    "parts_of",
    "substitute",
    "symbols_of",
    "typical",
]


def parts_of(atom: Atom) -> tuple[Any, ...]:
    """Return what `again` makes an atom of: a number of the scope's symbols, or an operation."""
    if atom.kind != "symbol":
        return atom.kind, atom.operands
    return (next(k for k, s in enumerate(atom.scope.symbols) if s.terms[0][0][0] is atom),)


def again(scope: Scope, parts: Iterable[tuple[Sequence[tuple[Any, ...]], int]]) -> Any:
    """Return an expression that was pickled."""
    found: Any = 0
    for factors, coefficient in parts:
        term: Any = coefficient
        for kind, *operands in factors:
            term = term * (_BUILDERS[kind](*operands[0]) if operands else scope.symbols[kind])
        found = found + term
    return found


def of_operation(kind: str, operands: Sequence[Any]) -> Any:
    """Return the length that an operation of an atom gives."""
    return _BUILDERS[kind](*operands)


def operand_count(kind: str) -> int:
    """Return how many operands an operation of an atom has; of ``all``, which may have more, 2."""
    return _OPERANDS.get(kind, 2)


TYPICAL = 48
"""What a symbol counts as where an order is wanted that no result depends on; no power of two, which alignment is."""


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
_OPERANDS = {"select": 3, "negative": 1, "zero": 1, "nonzero": 1, "bit_length": 1}
"""How many operands an operation has, if it does not have two."""


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
                    term = term * replacements.get(atom.own, atom.own)
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
                    found[atom.own] = None
                waiting += (one for one in atom.operands if isinstance(one, Dim))
    return sorted(found, key=lambda s: s.terms[0][0][0].number)


OPERATIONS.update({"parts": parts_of, "again": again})
