"""The native loop that evaluates size programs (`runtime.size_program`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from ..memory import address_of
from ..size_program import ROW_WORDS, RowOperation, SizeProgram
from .native import NativeKernel, constants_of


class Sizes:
    """Words (int64) of the loop's block: addresses of value 0 (``VALUES``) and of the rows (``ROWS``), and the number
    of symbols (``GIVEN``)."""

    VALUES, ROWS, GIVEN = range(3)


LARGEST = (1 << 63) - 1  # of int64

# args: a Sizes block; begin and end: the range of rows to evaluate. Nothing here overflows: LLVM may take it that
# nothing does.
EVALUATE = cpu_kernel(
    "executor_sizes",
    f"ROW_WORDS = {ROW_WORDS}\nLARGEST = {LARGEST}\nINVALID = -LARGEST - 1\nHALF = {1 << 31}\n"
    + constants_of("SIZES", Sizes)
    + "".join(f"OP_{operation.name} = {operation.value}\n" for operation in RowOperation)
    + """
def kernel(args, begin, end):
    values = words_at(args, SIZES_VALUES)
    results = words_from(values, args[SIZES_GIVEN])
    row = words_from(words_at(args, SIZES_ROWS), begin * ROW_WORDS)
    for r in range(begin, end):
        operation = row[0]
        a = values[row[1]]
        b = values[row[2]]
        valid = a != INVALID and b != INVALID
        v = INVALID
        if operation == OP_MULTIPLY:
            if a == 0 or b == 0:
                v = 0
            elif valid:
                fits = a < HALF and a > -HALF and b < HALF and b > -HALF
                if not fits:
                    fits = imax(a, -a) <= idiv(LARGEST, imax(b, -b))
                if fits:
                    v = a * b
        elif operation == OP_ADD:
            if valid:
                fits = a <= LARGEST - b if b >= 0 else a >= -LARGEST - b
                if fits:
                    v = a + b
        elif operation == OP_SUBTRACT:
            if valid:
                fits = a >= b - LARGEST if b >= 0 else a <= LARGEST + b
                if fits:
                    v = a - b
        elif operation == OP_FLOORDIV:
            if b == 0:
                v = 0
            elif valid:
                if a >= 0 and b > 0:
                    v = idiv(a, b)
                else:
                    v = div(a, b)
                    if (a < 0) != (b < 0) and v * b != a:
                        v -= 1
        elif operation == OP_MOD:
            if b == 0:
                v = 0
            elif valid:
                v = mod(a, b)
        elif operation == OP_MIN:
            if valid:
                v = imin(a, b)
        elif operation == OP_MAX:
            if valid:
                v = imax(a, b)
        elif operation == OP_SELECT:
            if a != INVALID:
                v = b
                if a == 0:
                    v = values[row[3]]
        elif operation == OP_BOTH:
            if a == 0 or b == 0:
                v = 0
            elif valid:
                v = 1
        elif a != INVALID:
            if operation == OP_NEGATIVE:
                v = 0
                if a < 0:
                    v = 1
            elif operation == OP_ZERO:
                v = 0
                if a == 0:
                    v = 1
            elif operation == OP_NONZERO:
                v = 1
                if a == 0:
                    v = 0
            else:
                rest = imax(a, -a)
                v = 0
                while rest != 0:
                    rest = rest >> 1
                    v += 1
        results[r] = v
        row = words_from(row, ROW_WORDS)
""",
)


class Evaluator:
    """Evaluates a size program for use in Python."""

    def __init__(self, program: SizeProgram) -> None:
        self._rows, self._memory = program.table(), program.memory()
        self._zero, self._given = len(program.constants), len(program.symbols)
        (code,) = load([EVALUATE])
        self._run = NativeKernel(code)

    def values(self, given: Sequence[int]) -> np.ndarray:
        """Return all values for the symbols' values, indexed by number; negative numbers index from the end."""
        memory, zero = self.memory(given), self._zero
        return np.concatenate([memory[zero:], memory[:zero]])

    def memory(self, given: Sequence[int]) -> np.ndarray:
        """Return all values for the symbols' values in memory order: the constants come before value 0."""
        memory, zero = self._memory.copy(), self._zero
        memory[zero : zero + self._given] = given
        block = np.array([address_of(memory) + 8 * zero, address_of(self._rows), self._given], np.int64)
        self._run(address_of(block), 0, len(self._rows) // ROW_WORDS)
        return memory
