"""Integers that remember how they were computed."""

from __future__ import annotations

import random

import pytest

from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.traced_int import Trace, TracedInt

OPERATIONS = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: 3 - b,
    lambda a, b: a * b,
    lambda a, b: 7 * b,
    lambda a, b: a // b,
    lambda a, b: 1000 // b,
    lambda a, b: a % b,
    lambda a, b: -a,
    lambda a, b: -(-a // b),
    lambda a, b: abs(b - a),
    lambda a, b: max(a, b),
    lambda a, b: min(a, 5),
    lambda a, b: a if a else b,
    lambda a, b: a + b if a * b > 12 else a - b,
    lambda a, b: 1 if a in (3, b) else a,
    lambda a, b: sorted([a, b, 4])[1],
    lambda a, b: sum([a, b, a]),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_trace_gives_for_other_values_is_what_is_computed_of_them(operation: object) -> None:
    assert callable(operation)
    given = random.Random(1)
    for _ in range(20):
        first, other = ([given.randint(1, 9), given.randint(1, 9)] for _ in range(2))
        trace = Trace()
        symbols = [trace.symbol(value) for value in first]
        result = operation(*symbols)
        assert int(result) == operation(*first)
        place = trace.number(result)
        values = trace.evaluate(other)
        assert values is None or values[place] == operation(*other)
        assert trace.evaluate(first)[place] == operation(*first)  # type: ignore[index]


def test_answers_that_differ_end_a_trace() -> None:
    trace = Trace()
    n = trace.symbol(8)
    assert n > 4 and n != 3
    assert trace.evaluate([5]) and trace.evaluate([100])
    assert trace.evaluate([4]) is None and trace.evaluate([3]) is None


def test_a_question_about_one_value_is_none() -> None:
    trace = Trace()
    n, m = trace.symbol(8), trace.symbol(4)
    assert n * m == n * m and hash(n) == 8
    assert trace.evaluate([3, 5]) is not None
    assert n == m + m
    assert trace.evaluate([3, 5]) is None and trace.evaluate([6, 3]) is not None


def test_that_shapes_differ_is_an_answer() -> None:
    trace = Trace()
    n, m = trace.symbol(8), trace.symbol(4)
    assert Shape(Type.float_type, (n, 2)) != Shape(Type.float_type, (m, 2))
    assert trace.evaluate([3, 5]) is not None and trace.evaluate([6, 6]) is None


def test_a_division_by_nothing_ends_a_trace() -> None:
    trace = Trace()
    n = trace.symbol(8)
    assert 16 // n == 2
    assert trace.evaluate([0]) is None


def test_a_traced_integer_is_an_integer() -> None:
    n = Trace().symbol(3)
    assert isinstance(n, int) and isinstance(n.__index__(), TracedInt)
    assert list(range(n)) == [0, 1, 2] and f"{n}" == "3" and n * 0.5 == 1.5


def test_numbers_that_are_lost_are_counted() -> None:
    trace = Trace()
    n = trace.symbol(7)
    assert trace.lost == 0 and n * 2 == 14 and trace.lost == 0
    assert type(int(n)) is int and int(n) == 7
    assert (float(n), n / 2, 7 / n) == (7.0, 3.5, 1.0)
    assert trace.lost == 5
    assert trace.values()[0] == 7
