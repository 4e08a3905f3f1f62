"""Symbolic lengths against Python's integers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgx_numba.core import bounds, dim
from mgx_numba.core import scope as scope_module
from mgx_numba.core.dim import (
    Dim,
    Scope,
    SymbolicLengthError,
    ceil_div,
    known_equal,
    known_less,
    known_less_equal,
    less,
    maximum,
    minimum,
    range_of,
    select,
)
from mgx_numba.core.shape import Shape
from mgx_numba.core.stored_length import StoredLength
from mgx_numba.core.types import Type
from mgx_numba.ops.base import make_op

SCOPE = Scope()
B, S, H, Z = SYMBOLS = (
    SCOPE.symbol("b", 1, None, 37), SCOPE.symbol("s", 1, 512, 41), SCOPE.symbol("h", 2, None, 43),
    SCOPE.symbol("z", 0, None, 47),
)  # fmt: skip
FEW = settings(max_examples=100, deadline=None, derandomize=True)

Function = Callable[[tuple[int, ...]], int]
Pair = tuple[Any, Function]
"""An expression, and the same by Python's operators."""


def _of(name: str, function: Callable[..., Any], own: Callable[..., int], *pairs: Pair) -> Pair:
    return function(*(p[0] for p in pairs)), lambda v: own(*(p[1](v) for p in pairs))


LEAVES = st.one_of(
    st.integers(-5, 40).map(lambda n: (n, lambda v: n)),
    st.integers(0, 3).map(lambda k: (SYMBOLS[k], lambda v: v[k])),
)
DIVISORS = st.one_of(
    st.sampled_from([1, 2, 3, 4, 8, 16, 48]).map(lambda n: (n, lambda v: n)),
    st.integers(0, 2).map(lambda k: (SYMBOLS[k], lambda v: v[k])),
    st.tuples(st.integers(0, 2), st.integers(1, 3)).map(
        lambda k: (SYMBOLS[k[0]] * k[1] + S, lambda v: v[k[0]] * k[1] + v[1])
    ),
)


def _grown(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two, over = st.tuples(inner, inner), st.tuples(inner, DIVISORS)
    return st.one_of(
        two.map(lambda p: _of("+", lambda a, b: a + b, lambda a, b: a + b, *p)),
        two.map(lambda p: _of("-", lambda a, b: a - b, lambda a, b: a - b, *p)),
        two.map(lambda p: _of("*", lambda a, b: a * b, lambda a, b: a * b, *p)),
        over.map(lambda p: _of("//", lambda a, b: a // b, lambda a, b: a // b, *p)),
        over.map(lambda p: _of("%", lambda a, b: a % b, lambda a, b: a % b, *p)),
        over.map(lambda p: _of("ceil", dim.ceil_div, lambda a, b: -(-a // b), *p)),
        two.map(lambda p: _of("min", minimum, min, *p)),
        two.map(lambda p: _of("max", dim.maximum, max, *p)),
        two.map(lambda p: _of("<", less, lambda a, b: int(a < b), *p)),
        two.map(lambda p: _of("<=", dim.less_equal, lambda a, b: int(a <= b), *p)),
        two.map(lambda p: _of("==", dim.equal, lambda a, b: int(a == b), *p)),
        st.tuples(two, two).map(
            lambda p: _of("select", lambda a, b, c, d: select(less(a, b), c, d), lambda a, b, c, d: c if a < b else d,
                          *p[0], *p[1])
        ),
        inner.map(lambda p: _of("abs", abs, abs, p)),
        inner.map(lambda p: _of("bits", lambda a: a.bit_length(), lambda a: a.bit_length(), p)),
    )  # fmt: skip


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=8)
VALUES = st.lists(
    st.tuples(st.integers(1, 70), st.integers(1, 512), st.integers(2, 70), st.integers(0, 70)), min_size=6, max_size=6
)


def _at(length: Any, values: tuple[int, ...]) -> int:
    return dim.evaluate(length, dict(zip(SYMBOLS, values)))


@FEW
@given(EXPRESSIONS, VALUES)
def test_expressions_have_pythons_values_within_their_ranges(pair: Pair, many: list[tuple[int, ...]]) -> None:
    length, function = pair
    low, high = dim.range_of(length)
    divisor = dim.common_divisor(length)
    for values in many:
        value = _at(length, values)
        assert value == function(values)
        assert (low is None or low <= value) and (high is None or value <= high)
        assert value == 0 if not divisor else value % divisor == 0
    together = dim.SampleValues([dict(zip(SYMBOLS, values)) for values in many])
    assert list(together.of(length)) == [function(values) for values in many]
    assert together.at(1)(length) == function(many[1])


def test_the_sign_of_a_sum_without_products_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving least values into the constant gives such a sum the bound that its interval has."""
    expanded: list[object] = []
    add = bounds._add
    monkeypatch.setattr(bounds, "_add", lambda terms, more: (expanded.append(more), add(terms, more)))
    with Scope() as scope:
        a, b = scope.symbol("a", 2, None), scope.symbol("b", 3, 99)
        assert bounds.never_negative((a - b + 97).terms) and not bounds.never_negative((4 * a - 3 * b + 160).terms)
        assert not expanded
        assert bounds.never_negative((a * b - 3 * a).terms) and expanded


def test_a_sum_that_is_negative_at_great_lengths_alone_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of two quotients is smaller is a question of every kernel that divides its tasks among threads."""
    with Scope() as scope:
        tasks = scope.symbol("tasks", 1, None)
        difference = (1 << 40) // tasks - tasks // 8
        monkeypatch.setattr(bounds._Proof, "_low", lambda *_: pytest.fail("the sum was searched"))
        assert not bounds.never_negative(difference.terms) and not bounds.never_negative((-difference).terms)


def test_a_proof_drops_bounds_that_are_too_weak_at_sample_lengths() -> None:
    """The proof expanded the remaining operations of such a sum until it reached `MOST_WORK`."""
    with Scope() as scope:
        h, w = scope.symbol("h", 0, 4096), scope.symbol("w", 0, 4096)
        half, quarter = ceil_div(h, 4) * ceil_div(w, 4), ceil_div(h, 8) * ceil_div(w, 8)
        assert bounds.never_negative((maximum(384 * quarter, maximum(96, 96 * half)) - 96 * half).terms)
        assert not bounds.never_negative((maximum(384 * quarter, maximum(96, 95 * half)) - 96 * half).terms)
        under = bounds.AtomRanges([(3 - h).terms])
        assert bounds.never_negative((6 - h - minimum(h, w)).terms, under)


@FEW
@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_known_answers_are_right_for_all_lengths(a: Pair, b: Pair, many: list[tuple[int, ...]]) -> None:
    before = len(SCOPE.guards)
    answers = known_equal(a[0], b[0]), known_less(a[0], b[0]), known_less_equal(a[0], b[0]), dim.same(a[0], b[0])
    conditions = (
        dim.all_of(less(a[0], b[0]), dim.equal(a[0], 3)),
        dim.any_of(less(a[0], b[0]), dim.negate(dim.equal(b[0], 1))),
    )
    assert len(SCOPE.guards) == before
    for values in many:
        x, y = a[1](values), b[1](values)
        assert not answers[0] or x == y
        assert not answers[1] or x < y
        assert not answers[2] or x <= y
        assert not answers[3] or x == y
        assert _at(conditions[0], values) == (x < y and x == 3)
        assert _at(conditions[1], values) == (x < y or y != 1)


@FEW
@given(EXPRESSIONS, st.sampled_from([1, 2, 3, 4, 12, 16]), VALUES)
def test_equal_expressions_are_one_object(pair: Pair, k: int, many: list[tuple[int, ...]]) -> None:
    a, _ = pair
    assert a - a == 0
    assert known_equal(a * k // k, a) and known_equal(a * B // B, a) and known_equal(a * (B + S) // (B + S), a)
    assert known_equal(a // k * k + a % k, a)
    if isinstance(a, Dim) and all(atom.kind == "symbol" for monomial, _ in a.terms for atom in monomial):
        assert a // k // 3 is a // (3 * k)
    assert known_less_equal(a // k * k, a) and known_less_equal(a, dim.ceil_div(a, k) * k)
    assert known_less(a % k, k) and known_less_equal(0, a % k)
    assert (a + k) - k is a or a + k - k == a
    assert known_equal(dim.substitute(a, {}), a)


@FEW
@given(EXPRESSIONS, st.tuples(st.integers(1, 9), st.integers(1, 9)), VALUES)
def test_substituted_symbols_are_computed_with(pair: Pair, by: tuple[int, int], many: list[tuple[int, ...]]) -> None:
    length, function = pair
    found = dim.substitute(length, {B: by[0], H: Z + by[1] + 1})
    for b, s, h, z in many:
        assert _at(found, (b, s, h, z)) == function((by[0], s, z + by[1] + 1, z))
    assert set(dim.symbols_of([found])) <= {S, Z}


PROVEN = [
    (0, B - 1), (1, S - S // 2), (B, B * S), (B + S - 1, B * S), (S, dim.ceil_div(S, 16) * 16), (S // 2, S),
    (S % H, H - 1), (0, S % H), (minimum(S, 128), S), (S, dim.maximum(S, B)), (dim.ceil_div(S, B) - 1, S),
    ((S + 2 - 3) // 2 + 1, S + 1), (B * (S // 4) * 4, B * S), (S // H * H, S), (0, S - minimum(S, H)),
    (minimum(Z, S - 1), S - 1), (select(less(Z, S), Z, S), S), (dim.ceil_div(S, 16), S), (S * 3 // 4, S),
    (dim.ceil_div(minimum(S, 64), 16), 4), (0, B * S * H - 2 * B * S), ((Z + 1) // 2, Z), (S % 16 + S // 16 * 16, S),
]  # fmt: skip


@pytest.mark.parametrize(("small", "large"), PROVEN, ids=[f"{a} <= {b}" for a, b in PROVEN])
def test_orders_are_proven(small: Any, large: Any) -> None:
    assert known_less_equal(small, large)
    assert not known_less(large, small)


def test_conditions_without_what_all_terms_have_in_common_are_one() -> None:
    assert dim.equal(B * S, B) is dim.equal(S, 1)
    assert less(B * S * 3, B * 7) is less(S, 3)
    assert dim.equal(Z * S, Z) is not dim.equal(S, 1)  # 0 times anything


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (B * S * 2 - 1, "2*b*s - 1"), (dim.ceil_div(S, 16), "((s + 15) // 16)"), (S % 16, "(s % 16)"),
        ((S + 32) // 16, "(s // 16) + 2"), ((B * S + 5) // B, "s + (5 // b)"), (S // 2 // 3, "(s // 6)"),
        ((5 * S) // 4, "s + (s // 4)"), (minimum(S, B), "min(b, s)"), (less(S, 5), "(s < 5)"),
    ],
)  # fmt: skip
def test_expressions_are_written_in_one_form(length: Any, text: str) -> None:
    assert str(length) == text


def _scope() -> tuple[Scope, Dim, Dim]:
    scope = Scope()
    return scope, scope.symbol("n", 1, None, 37), scope.symbol("m", 1, None, 41)


def test_questions_that_guards_imply_are_no_new_guards() -> None:
    scope, n, m = _scope()
    assert n > 5
    assert len(scope.guards) == 1
    assert n != 1 and n >= 3 and not n < 6 and n != 5 and n // 2 >= 3 and 2 * n > 10 and n * m > 5
    assert minimum(n, 6) == 6 and n - 6 >= 0
    assert len(scope.guards) == 1
    assert n <= m
    assert n < m + 1 and not (m + 3 < n) and 2 * n <= 2 * m and n * m <= m * m and n <= m * 2
    assert len(scope.guards) == 2
    assert n != m and n < m
    assert len(scope.guards) == 3  # the two may not be equal


def test_equal_symbols_are_known_to_be_after_one_question() -> None:
    scope = Scope()
    n, m = scope.symbol("n", 1, None, 37), scope.symbol("m", 1, None, 37)
    assert n == m
    assert m == n and n * 768 == m * 768 and not n < m and n // 4 <= m
    assert len(scope.guards) == 1
    k = scope.symbol("k", 1, None, 9)
    assert k == 9
    assert k * 3 == 27 and k < 10 and k % 4 == 1
    assert len(scope.guards) == 2


def test_facts_of_all_guards_were_collected_for_each_new_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 inputs of different symbols that were added took minutes: facts were collected anew, and proofs that had given
    up went on through all facts."""
    collected, compared = [], []
    facts, quotient = bounds.facts_of, bounds.quotient_of_products
    monkeypatch.setattr(scope_module, "facts_of", lambda *given: collected.append(given) or facts(*given))
    monkeypatch.setattr(bounds, "quotient_of_products", lambda *given: compared.append(given) or quotient(*given))
    scope = Scope()
    total = scope.symbol("n0", 0, None, 3)
    for k in range(1, 60):
        n = scope.symbol(f"n{k}", 0, None, 3)
        assert total == n and total != n + 1
    assert len(scope.guards) == len(collected) == 59
    assert len(compared) < 30_000


def test_a_trial_knows_nothing_of_other_guards() -> None:
    scope, n, _ = _scope()
    assert n > 5
    with scope.trial({n: 3}):
        assert n < 5 and n < 6
        assert len(scope.guards) == 1
    assert n > 4 and len(scope.guards) == 1


def test_uses_as_a_number_are_refused() -> None:
    for function in (int, float, range, lambda n: n / 2, lambda n: [0] * n, lambda n: "a"[n]):
        with pytest.raises((SymbolicLengthError, TypeError)):
            function(S)  # type: ignore[operator]
    scope, n, _ = _scope()
    scope.close()
    with pytest.raises(SymbolicLengthError, match="n"):
        bool(n > 7)
    with pytest.raises(SymbolicLengthError, match="different programs"):
        _ = n + S


def test_copies_are_the_same() -> None:
    scope, n, m = _scope()
    length = dim.ceil_div(n * m, 16) + minimum(n, m)
    assert copy.copy(length) is length and copy.deepcopy([length, scope])[0] is length


def test_programs_that_share_a_space_have_the_same_expressions_and_guards_of_their_own() -> None:
    space, found = dim.ExpressionSpace(), []
    for hint in (3, 9):
        with Scope(space) as outer:
            n = outer.symbol("n", 1, 100, hint)
            assert (n > 5) == (hint == 9)
            with Scope(space) as inner:  # a body that is compiled while the program is
                assert inner.symbol("n", 1, 100, 7) is n
                assert n > 5 and dim.hint(n) == 7 and n.scope is inner
                with pytest.raises(SymbolicLengthError), inner.trial({n: 2}):
                    assert not n > 5
                    raise SymbolicLengthError("a plan that cannot be made")
            assert n.scope is outer and dim.hint(n) == hint and len(outer.guards) == 1
            assert outer.symbol("n", 1, 100) is not n is not outer.symbol("n", 1, 99)
            found.append(minimum(n * n, 64) // 3)
        with pytest.raises(SymbolicLengthError, match="after the program was compiled"):
            assert n > 6
        assert known_less(n, 101) and not known_equal(n, 4)
    assert found[0] is found[1]


def test_extremes_and_quotients_of_a_pair_are_found_once() -> None:
    space = dim.ExpressionSpace()
    with Scope(space) as scope:
        n = scope.symbol("n", 1, 100, 9)
        made = minimum(n, 64), maximum(n, 64), (n * n) // (n + 1), 200 // n
    for least, greatest, quotient, inverse in (made, (minimum(n, 64), maximum(n, 64), (n * n) // (n + 1), 200 // n)):
        assert space.extremes["min", n, 64] is least and space.extremes["max", n, 64] is greatest
        assert space.quotients[n * n, n + 1] is quotient and space.quotients[200, n] is inverse
    for value in range(1, 101):
        found = [dim.evaluate(length, {n: value}) for length in made]
        assert found == [min(value, 64), max(value, 64), value * value // (value + 1), 200 // value]


def test_threads_ask_their_own_scope_of_a_space() -> None:
    space, barrier = dim.ExpressionSpace(), threading.Barrier(2, timeout=60)

    def compiled(hint: int) -> tuple[bool, int]:
        with Scope(space) as scope:
            n = scope.symbol("n", 1, 100, hint)
            barrier.wait()
            answer = n * 2 > 50
            barrier.wait()
            return answer, len(scope.guards)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(compiled, (10, 40))) == [(False, 1), (True, 1)]


def test_shapes_and_operators_compare_without_questions() -> None:
    scope, n, m = _scope()
    shapes = [Shape(Type.float_type, lens) for lens in ((n,), (m,), (1,), (n, m), (n + 1,), (37,), (n * 1,))]
    ops = [make_op("multibroadcast", out_lens=lens) for lens in ([n, 4], [m, 4], [37, 4], [n, 4])]
    assert [s == shapes[0] for s in shapes] == [True, False, False, False, False, False, True]
    assert [op == ops[0] for op in ops] == [True, False, False, True]
    assert len(set(shapes)) == 6 and len(set(ops)) == 3
    assert Shape.tuple(shapes[:2]) != Shape.tuple(shapes[1:3]) and Shape.tuple(shapes[:2]).symbolic
    assert [make_op("slice", axes=[0], starts=[n], ends=[n + 1]) in ops, ops.index(ops[3])] == [False, 0]
    assert not scope.guards


@FEW
@given(st.lists(st.tuples(EXPRESSIONS, EXPRESSIONS, st.booleans()), min_size=2, max_size=6), VALUES)
def test_answers_hold_for_all_lengths_for_which_the_guards_do(asked: list[Any], many: list[tuple[int, ...]]) -> None:
    with SCOPE.trial(dict(zip(SYMBOLS, many[0]))):
        answers = [a[0] < b[0] if kind else a[0] == b[0] for a, b, kind in asked]
        holds = SCOPE.holds()
    assert _at(holds, many[0])
    for values in (*many, *((b, 5, 7, z) for b in (1, 2, 3) for z in (0, 1, 6))):
        if _at(holds, values):
            assert answers == [
                a[1](values) < b[1](values) if kind else a[1](values) == b[1](values) for a, b, kind in asked
            ]


def test_stored_lengths_answer_as_their_expressions() -> None:
    """Bounds looked at values of the expression at a few points, which a stored length had not."""
    scope = Scope()
    a, b = scope.symbol("a", 1, 100), scope.symbol("b", 1)
    for expression in (a * b + 2, a // 3 - b):
        length: Any = StoredLength(None, 0, lambda number, made=expression: made)  # type: ignore[misc]
        for ask in (known_less, known_less_equal, known_equal):
            assert [ask(0, length), ask(length, 3), ask(length, a)] == [
                ask(0, expression), ask(expression, 3), ask(expression, a)
            ]  # fmt: skip
        for made in (maximum, minimum, ceil_div):
            assert dim.evaluate(made(length, 5), {a: 3, b: 4}) == dim.evaluate(made(expression, 5), {a: 3, b: 4})
        assert range_of(length) == range_of(expression)
