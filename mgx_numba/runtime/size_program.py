"""Size programs: the numbers of a symbolic plan as data that a native loop evaluates.

A program computes *values*, all int64. Each value has a number: symbols are numbered from 0 on, results of rows follow,
constants count from -1 down. A row is an operation and the numbers of its operands; row r computes value
``symbols + r``. Equal subexpressions share one row.

The semantics are total and those of `core.dim.evaluate`: floor division and its remainder, both 0 for divisor 0. A
value that int64 cannot hold is `INVALID`, and so is what depends on an invalid value: an operand that is not selected
does not matter, nor does a factor beside 0. So a program has no wrong values, only valid and invalid ones.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ..core.dim import Atom, Dim, Length
from ..errors import CompileError

__all__ = ["INVALID", "ROW_WORDS", "RowOperation", "SizeProgram"]

INVALID = -(1 << 63)
"""The value of an expression whose value is no int64."""
ROW_WORDS = 4
"""Words of a row: the operation and three operands; operands that an operation lacks are 0."""


class RowOperation(IntEnum):
    """The operation of a row on its operands a, b and c."""

    # Only `runtime.host.sizes` reads the numbers: any that differ would do.
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
_OPERATIONS = {kind: RowOperation[kind.upper()] for kind in _KINDS}
"""Operations by the kind of an atom, for the kinds that are one row each."""


class SizeProgram:
    """Rows that compute expressions over symbols.

    Attributes:
        symbols: the values that are given, in the order of their numbers.
        constants: value ``-1 - k`` is ``constants[k]``.
        rows: in the order of computation.
    """

    def __init__(self, symbols: tuple[Dim, ...]) -> None:
        self.symbols = symbols
        self.constants: list[int] = []
        self.rows: list[tuple[int, int, int, int]] = []
        self._atoms: dict[Atom, int] = {symbol.terms[0][0][0]: k for k, symbol in enumerate(symbols)}
        self._dims: dict[Dim, int] = {}
        self._constants: dict[int, int] = {}
        self._rows: dict[tuple[int, int, int, int], int] = {}

    def number(self, length: Length) -> int:
        """Return the number of an expression's value; rows for it are added where they are missing.

        Raises:
            CompileError: the expression has a symbol that is not among the program's.
        """
        if not isinstance(length, Dim):
            return self._constant(int(length))
        waiting = [length]  # no recursion: offsets of an arena nest as deep as a plan has steps
        while waiting:
            dim = waiting[-1]
            if dim not in self._dims:
                operands = [o for m, _ in dim.terms for atom in m for o in atom.operands if isinstance(o, Dim)]
                missing = [o for o in operands if o not in self._dims]
                if missing:
                    waiting += missing
                    continue
                self._dims[dim] = self._sum(dim)
            waiting.pop()
        return self._dims[length]

    def table(self) -> np.ndarray:
        """Return the rows as an array of `ROW_WORDS` words for each."""
        return np.array(self.rows, np.int64).reshape(-1)

    def memory(self) -> np.ndarray:
        """Return memory for all values, in which the constants are set; value 0 is at place ``len(constants)``."""
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

    def _row(self, operation: RowOperation, a: int, b: int = 0, c: int = 0) -> int:
        key = (int(operation), a, b, c)
        number = self._rows.get(key)
        if number is None:
            self.rows.append(key)
            number = self._rows[key] = len(self.symbols) + len(self.rows) - 1
        return number

    def _sum(self, dim: Dim) -> int:
        """Return the number of a sum of products, whose operands all have numbers."""
        total: int | None = None
        for monomial, coefficient in dim.terms:
            product: int | None = None
            for atom in monomial:
                factor = self._atom(atom)
                product = factor if product is None else self._row(RowOperation.MULTIPLY, product, factor)
            if product is None:
                product = self._constant(coefficient)
            elif total is not None and coefficient == -1:
                total = self._row(RowOperation.SUBTRACT, total, product)
                continue
            elif coefficient != 1:
                product = self._row(RowOperation.MULTIPLY, product, self._constant(coefficient))
            total = product if total is None else self._row(RowOperation.ADD, total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> int:
        number = self._atoms.get(atom)
        if number is None:
            if atom.kind == "symbol":
                raise CompileError(f"the length {atom.name} of no input is needed, which no run can tell")
            operands = [self._dims[o] if isinstance(o, Dim) else self._constant(o) for o in atom.operands]
            if atom.kind == "all":
                number, *others = operands
                for other in others:
                    number = self._row(RowOperation.BOTH, number, other)
            else:
                number = self._row(_OPERATIONS[atom.kind], *operands)
            self._atoms[atom] = number
        return number
