"""Stored lengths: from numbers of a size program back to expressions."""

from __future__ import annotations

import random

import pytest

from mgx_numba.core.dim import Dim, Length, Scope, evaluate
from mgx_numba.runtime.size_program import SizeProgram

from .test_size_program import random_length


@pytest.mark.parametrize("seed", range(6))
def test_expressions_are_read_back_from_the_rows_that_compute_them(seed: int) -> None:
    rng = random.Random(100 + seed)
    scope = Scope()
    symbols = tuple(scope.symbol(f"s{k}", k, None, 5 + k) for k in range(3))
    known: list[Length] = [*symbols, 1, 3, -2]
    for _ in range(60):
        made = random_length(rng, known)
        if isinstance(made, int) or len(made.terms) < 12:
            known.append(made)
    program = SizeProgram(symbols)
    numbers = [program.number(one) for one in known]
    words = [word for row in program.rows for word in row]
    again = SizeProgram.read(symbols, program.constants, words)
    assert again.rows == program.rows and again.constants == program.constants
    for one, number in zip(known, numbers):
        if not isinstance(one, Dim):
            continue
        stored = again.stored(number)
        assert again.number(stored) == number and again.stored(number) is stored
        for _ in range(5):
            values = {s: rng.randint(s.low or 0, 400) for s in symbols}
            assert evaluate(stored, values) == evaluate(one, values), one
        assert (stored.low, stored.high) == (one.low, one.high) and str(stored) == str(one)
    assert len(again.rows) == len(program.rows)
