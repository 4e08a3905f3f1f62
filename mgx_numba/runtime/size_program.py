"""Size programs: the numbers of a symbolic plan as data that a native loop evaluates.

A program computes *values*, all int64. Each value has a number: symbols are numbered from 0, results of rows follow,
constants count from -1 down. A row is an operation and the numbers of its operands; row r computes value ``symbols +
r``. Equal subexpressions share one row.

The semantics are total and those of `core.dim.evaluate`: floor division and its remainder are both 0 for divisor 0. A
value that does not fit in int64 is `INVALID`, and so is every value that depends on it. An operand that is not selected
does not count as a dependency, nor does a factor beside 0. So a program never yields a wrong value, only valid and
invalid values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import count
from math import prod

import numpy as np

from ..core.dim import Atom, Dim, Length, SharedLength, of_operation, operand_count
from ..core.stored_length import StoredLength
from ..errors import CompileError

INVALID = -(1 << 63)
"""The value of an expression that does not fit in int64."""
ROW_WORDS = 4
"""Words of a row: the operation and three operands; unused operands are 0."""


class RowOperation(IntEnum):
    """The operation of a row on its operands a, b and c."""

    # Only `runtime.host.sizes` reads these numbers, so any distinct values work.
    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    FLOORDIV = 3
    MOD = 4
    MIN = 5
    MAX = 6
    SELECT = 7  # b where a is not 0, else c
    NEGATIVE = 8
    ZERO = 9
    NONZERO = 10
    BOTH = 11  # 1 if neither a nor b is 0
    BIT_LENGTH = 12


_KINDS = ("floordiv", "mod", "min", "max", "select", "negative", "zero", "nonzero", "bit_length")
_OPERATIONS = {kind: int(RowOperation[kind.upper()]) for kind in _KINDS}
"""Operations by the kind of an atom, for kinds that take a single row."""
ADD, SUBTRACT, MULTIPLY, BOTH = [int(RowOperation[name]) for name in ("ADD", "SUBTRACT", "MULTIPLY", "BOTH")]
_KIND_OF = {operation: kind for kind, operation in _OPERATIONS.items()} | {BOTH: "all"}


class SizeProgram:
    """Rows that compute expressions over symbols.

    Attributes:
        symbols: the program's inputs, in the order of their numbers.
        constants: value ``-1 - k`` is ``constants[k]``.
        rows: rows in the order of computation.
    """

    def __init__(self, symbols: tuple[Dim, ...]) -> None:
        self.symbols = symbols
        self.constants: list[int] = []
        self.rows: list[tuple[int, int, int, int]] = []
        self._atoms: dict[Atom, int] = {symbol.terms[0][0][0]: k for k, symbol in enumerate(symbols)}
        self._dims: dict[Dim, int] = {}
        self._products: dict[tuple[Atom, ...], int] = {}
        self._constants: dict[int, int] = {}
        self._rows: dict[tuple[int, int, int, int], int] = {}
        self._expressions: dict[int, Length] = {}
        self._stored: dict[int, StoredLength] = {}

    @classmethod
    def read(cls, symbols: tuple[Dim, ...], constants: Iterable[int], words: Sequence[int]) -> SizeProgram:
        """Return the program with these symbols and constants, and the rows in ``words``, `ROW_WORDS` words each."""
        made = cls(symbols)
        made.constants = list(constants)
        made.rows = list(zip(*[iter(words)] * ROW_WORDS))
        made._constants = dict(zip(made.constants, count(-1, -1)))
        made._rows = dict(zip(made.rows, count(len(symbols))))
        return made

    def stored(self, number: int) -> Dim:
        """Return the length with this number; its expression is built only when it is used."""
        if 0 <= number < len(self.symbols):
            return self.symbols[number]
        found = self._stored.get(number)
        if found is None:
            if not 0 <= number < len(self.symbols) + len(self.rows):
                raise ValueError(f"a size program of {len(self.rows)} rows has no value {number}")
            found = self._stored[number] = StoredLength(self, number, self.expression)
        return found

    def expression(self, number: int) -> Length:
        """Return the expression of a value."""
        if number < 0:
            return self.constants[-1 - number]
        if number < len(self.symbols):
            return self.symbols[number]
        if number in self._expressions:
            return self._expressions[number]
        needed, waiting = set[int](), [number]
        while waiting:  # operands have smaller numbers than their users
            own = waiting.pop()
            if own >= len(self.symbols) and own not in needed and own not in self._expressions:
                needed.add(own)
                waiting += self._operands(own)
        for own in sorted(needed):
            self._expressions[own] = self._expression_of(own)
        return self._expressions[number]

    def _operands(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the operands of a value's row."""
        operation, *numbers = self.rows[number - len(self.symbols)]
        return tuple(numbers[: operand_count(_KIND_OF.get(operation, "add"))])

    def _expression_of(self, number: int) -> SharedLength:
        operation = self.rows[number - len(self.symbols)][0]
        operands = [self.expression(n) for n in self._operands(number)]
        a, b = operands[0], operands[-1]
        if operation == ADD:
            return a + b
        if operation == SUBTRACT:
            return a - b
        if operation == MULTIPLY:
            return a * b
        return of_operation(_KIND_OF[operation], operands)

    def product(self, lengths: Sequence[Length], factor: int) -> int:
        """Return the number of the product of lengths and a factor."""
        numbers = [self.number(length) for length in lengths if isinstance(length, Dim)]
        total = self._constant(prod(length for length in lengths if not isinstance(length, Dim)) * factor)
        for number in numbers:
            total = self._row(MULTIPLY, number, total)
        return total

    def rows_until(self, numbers: Iterable[int]) -> int:
        """Return how many rows need evaluation for ``values``."""
        return max(0, max(numbers, default=-1) + 1 - len(self.symbols))

    def number(self, length: Length) -> int:
        """Return the number of an expression's value; missing rows are added.

        Raises:
            CompileError: the expression has a symbol that is not among the program's.
        """
        if type(length) is StoredLength and length.owner is self:
            return length.number
        if not isinstance(length, Dim):
            return self._constant(int(length))
        dims, atoms = self._dims, self._atoms
        waiting = [] if length in dims else [length]  # iterative: arena offsets nest as deep as the number of steps
        while waiting:
            dim = waiting[-1]
            if dim not in dims:
                new = [atom for m, _ in dim.terms for atom in m if atom not in atoms]
                missing = [o for atom in new for o in atom.operands if isinstance(o, Dim) and o not in dims]
                if missing:
                    waiting += missing
                    continue
                dims[dim] = self._sum(dim)
            waiting.pop()
        return dims[length]

    def table(self) -> np.ndarray:
        """Return the rows as an array of `ROW_WORDS` words for each."""
        return np.array(self.rows, np.int64).reshape(-1)

    def memory(self) -> np.ndarray:
        """Return memory for all values with the constants set; value 0 is at index ``len(constants)``."""
        memory = np.zeros(len(self.constants) + len(self.symbols) + len(self.rows), np.int64)
        memory[: len(self.constants)] = self.constants[::-1]
        return memory

    def _constant(self, value: int) -> int:
        if not -(1 << 63) < value < 1 << 63:
            value = INVALID
        number = self._constants.get(value)
        if number is None:
            self.constants.append(value)
            number = self._constants[value] = -len(self.constants)
        return number

    def _row(self, operation: int, a: int, b: int = 0, c: int = 0) -> int:
        key = operation, a, b, c
        number = self._rows.get(key)
        if number is None:
            self.rows.append(key)
            number = self._rows[key] = len(self.symbols) + len(self.rows) - 1
        return number

    def _sum(self, dim: Dim) -> int:
        """Return the number of a sum of products whose factors all have numbers."""
        total: int | None = None
        for monomial, coefficient in dim.terms:
            if not monomial:
                product = self._constant(coefficient)
            else:
                product = self._product(monomial)
                if total is not None and coefficient == -1:
                    total = self._row(SUBTRACT, total, product)
                    continue
                if coefficient != 1:
                    product = self._row(MULTIPLY, product, self._constant(coefficient))
            total = product if total is None else self._row(ADD, total, product)
        assert total is not None
        return total

    def _product(self, monomial: tuple[Atom, ...]) -> int:
        """Return the number of a product of atoms whose operands have numbers."""
        found = self._products.get(monomial)
        if found is None:
            found, *others = map(self._atom, monomial)
            for other in others:
                found = self._row(MULTIPLY, found, other)
            self._products[monomial] = found
        return found

    def _atom(self, atom: Atom) -> int:
        number = self._atoms.get(atom)
        if number is None:
            if atom.kind == "symbol":
                raise CompileError(f"the length {atom.name} of no input is needed, which no run can tell")
            operands = [self._dims[o] if isinstance(o, Dim) else self._constant(o) for o in atom.operands]
            if atom.kind == "all":
                number, *others = operands
                for other in others:
                    number = self._row(BOTH, number, other)
            else:
                number = self._row(_OPERATIONS[atom.kind], *operands)
            self._atoms[atom] = number
        return number
