"""Size programs: the native loop computes what `core.dim.evaluate` computes, or reports an int64 overflow."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mgx_numba.core.dim import (
    Dim,
    Length,
    Scope,
    all_of,
    any_of,
    equal,
    evaluate,
    less,
    maximum,
    minimum,
    negate,
    select,
)
from mgx_numba.errors import CompileError
from mgx_numba.runtime.host.sizes import Evaluator
from mgx_numba.runtime.size_program import INVALID, SizeProgram


def random_length(rng: random.Random, known: Sequence[Length]) -> Length:
    a, b, c = (rng.choice(known) for _ in range(3))
    number = rng.choice([1, 2, 3, 7, 16, 64, 1000003, -5])
    makers = [
        lambda: a + b, lambda: a - b * number, lambda: a * b, lambda: a // number, lambda: a % number,
        lambda: a // (b * b + 1), lambda: a % (b * b + 1), lambda: a // minimum(b, -1), lambda: a % minimum(b, -1),
        lambda: minimum(a, b), lambda: maximum(a, b), lambda: select(less(a, b), c, a),
        lambda: less(a, b) + equal(b, c), lambda: all_of(less(a, b), negate(equal(a, c)), less(b, c * number)),
        lambda: any_of(less(a, b), equal(b, c)),
        lambda: a.bit_length(), lambda: a * a + b * number + 1, lambda: select(equal(a % number, 0), a, b) * c,
    ]  # fmt: skip
    return rng.choice(makers)()


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions_have_the_values_that_python_gives_or_none(seed: int) -> None:
    rng = random.Random(seed)
    scope = Scope()
    symbols = tuple(scope.symbol(f"s{k}", k, None, 5 + k) for k in range(3))
    known: list[Length] = [*symbols, 1, 3, -2]
    for _ in range(60):
        made = random_length(rng, known)
        if isinstance(made, int) or len(made.terms) < 12:
            known.append(made)
    program = SizeProgram(symbols)
    numbers = [program.number(one) for one in known]
    assert len(program.rows) == len(set(program.rows))
    held = 0
    for largest in (1, 2, 9, 300, 1 << 20, 1 << 40, (1 << 62) - 1):
        given = [rng.randint(low, max(low, largest)) for low in range(3)]
        values = Evaluator(program).values(given).tolist()
        exact: dict[Dim, int] = {}
        for one, number in zip(known, numbers):
            expected = evaluate(one, dict(zip(symbols, given)), exact)
            if -(1 << 63) < expected < 1 << 63:
                assert values[number] in (expected, INVALID), (one, given)
                held += values[number] == expected
            else:
                assert values[number] == INVALID, (one, given)
        if largest < 10:  # terms of a sum that cancel may be too large otherwise
            assert INVALID not in values
    assert held > 2 * len(known)


EDGES = [0, 1, -1, 2, -7, 1 << 31, -(1 << 31), (1 << 32) - 1, 3037000500, 1 << 62, (1 << 63) - 1, -(1 << 63) + 1]


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: minimum(a, b),
        lambda a, b: maximum(a, b),
        lambda a, b: a.bit_length(),
        lambda a, b: a // b,
        lambda a, b: a % b,
    ],
)
def test_one_operation_at_the_edges_of_int64(made: object) -> None:
    scope = Scope()
    a, b = (scope.symbol(name, -(1 << 63), None, 5) for name in "ab")
    expression = made(a, b)  # type: ignore[operator]
    program = SizeProgram((a, b))
    number = program.number(expression)
    for x in EDGES:
        for y in EDGES:
            exact = evaluate(expression, {a: x, b: y})
            expected = exact if -(1 << 63) < exact < 1 << 63 else INVALID
            found = Evaluator(program).values([x, y])[number]
            # A remainder may be written a - a // b * b, whose product is too large near the edges.
            assert found == expected or (len(program.rows) > 1 and found == INVALID), (x, y)


def test_what_is_not_selected_and_what_is_multiplied_by_zero_may_be_invalid() -> None:
    scope = Scope()
    a, b = (scope.symbol(name, 0, None, 5) for name in "ab")
    huge = a * a * a
    program = SizeProgram((a, b))
    numbers = [
        program.number(one)
        for one in (select(less(a, 9), huge, b), less(a, 9) * huge, huge, huge + b, all_of(less(a, 9), less(huge, b)))
    ]
    values = Evaluator(program).values([1 << 40, 77])
    assert [values[number] for number in numbers] == [77, 0, INVALID, INVALID, 0]


def test_equal_parts_are_computed_once_and_deep_expressions_are_taken() -> None:
    scope = Scope()
    a, b = (scope.symbol(name, 1, None, 5) for name in "ab")
    program = SizeProgram((a, b))
    assert program.number(a) == 0 and program.number(b) == 1
    first = program.number(a * b * 768)
    assert program.number(a * b * 768) == first and len(program.rows) == 2
    program.number(a * b * 3072 + 5)
    assert len(program.rows) == 4
    end: Length = 0
    for k in range(3000):
        end = maximum(end, a * k) + b
    number = program.number(end)
    values = Evaluator(program).values([2, 3])
    expected = 0
    for k in range(3000):
        expected = max(expected, 2 * k) + 3
    assert values[number] == expected


def test_a_symbol_of_no_input_is_refused() -> None:
    scope = Scope()
    a, b = (scope.symbol(name, 1, None, 5) for name in "ab")
    with pytest.raises(CompileError, match="length b of no input"):
        SizeProgram((a,)).number(a + b)
