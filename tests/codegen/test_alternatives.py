"""Alternatives for symbolic lengths: selection, coverage of all lengths, and merging into one solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mgx_numba.codegen.alternatives import Alternative, alternatives, one_solution, served
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid, Launch, OneCall, Operand, Solution, TaskRange
from mgx_numba.core.dim import Dim, Length, Scope, all_of, ceil_div, evaluate, less, less_equal, permitted, preferred
from mgx_numba.errors import UnsupportedError


def scope_of(*samples: int, low: int = 1) -> tuple[Scope, Dim]:
    scope = Scope()
    n = scope.symbol("n", low, None, 37)
    scope.samples = [{n: value} for value in samples]
    return scope, n


def taken(found: Sequence[Alternative[Any]], values: dict[Dim, int]) -> list[Any]:
    return [one.result for one in found if evaluate(one.condition, values)]


def test_a_problem_of_plain_numbers_is_solved_as_it_is() -> None:
    assert alternatives((3, 4), sum) == [Alternative(1, 7)]


def test_questions_are_not_asked_of_the_scope() -> None:
    scope, n = scope_of(5)
    assert n < 100  # a guard of the program, which stays
    before = dict(scope.guards)
    found = alternatives(n, lambda n: "short" if n < 10 else "long")
    assert scope.guards == before and not scope.preferences
    assert [taken(found, {n: k}) for k in (1, 9, 10, 99)] == [["short"], ["short"], ["long"], ["long"]]
    assert served(found) is not None and evaluate(served(found), {n: 4}) == 1


def test_preferences_leave_no_length_without_a_solution() -> None:
    _, n = scope_of()
    found = alternatives(n, lambda n: "wide" if preferred(less(20, n)) else "narrow")
    assert served(found) == 1
    assert [taken(found, {n: k}) for k in (1, 37, 10**6)] == [["wide"]] * 3  # no sample asked for the other one


def test_each_sample_gets_what_is_best_for_it() -> None:
    _, n = scope_of(2, 500)
    calls = []

    def solve(n: Length) -> str:
        calls.append(n)
        return "wide" if preferred(less(20, n)) else "narrow"

    found = alternatives(n, solve)
    assert len(calls) == 2  # 500 is served by what 37 got
    assert [taken(found, {n: k}) for k in (1, 20, 21, 9999)] == [["narrow"], ["narrow"], ["wide"], ["wide"]]


def test_lengths_that_another_part_serves_were_tried() -> None:
    _, n = scope_of(2, 37, 500, 9000)
    tried: list[int] = []

    def solve(n: Length) -> str:
        assert isinstance(n, Dim)
        tried.append(n.scope.value(n))
        if n > 100:
            raise UnsupportedError("too long")
        return "wide" if preferred(less(20, n)) else "narrow"

    found = alternatives(n, solve, [{n: 3}], less(n, 100))
    assert sorted(tried) == [2, 37]
    assert [taken(found, {n: k}) for k in (1, 20, 21, 99)] == [["narrow"], ["narrow"], ["wide"], ["wide"]]


def test_what_needs_a_length_has_another_solution_beside_it() -> None:
    _, n = scope_of()
    found = alternatives(n, lambda n: "blocks" if permitted(less_equal(8, n)) else "single")
    assert served(found) == 1
    assert [taken(found, {n: k}) for k in (1, 7, 8, 37)] == [["single"], ["single"], ["blocks"], ["blocks"]]


def test_lengths_that_no_solution_serves_are_not_covered() -> None:
    _, n = scope_of(3)

    def solve(n: Length) -> str:
        if n < 8:
            raise UnsupportedError("too short")
        return "kernel"

    found = alternatives(n, solve)
    assert [evaluate(served(found), {n: k}) for k in (3, 7, 8, 37)] == [0, 0, 1, 1]


def test_what_the_example_lengths_cannot_have_is_refused() -> None:
    _, n = scope_of(100)

    def solve(n: Length) -> str:
        if n < 50:
            raise UnsupportedError("too short")
        return "kernel"

    with pytest.raises(UnsupportedError, match="too short"):
        alternatives(n, solve)


@pytest.mark.parametrize("samples", [(), (1, 2, 64), (300,), (1, 5, 9, 17, 33, 1000)])
def test_exactly_one_of_many_is_taken(samples: tuple[int, ...]) -> None:
    _, n = scope_of(*samples)

    def solve(n: Length) -> tuple[bool, ...]:
        wide = preferred(less(16, n))
        block = permitted(less_equal(8 if wide else 4, n))
        whole = bool(block) and permitted(less_equal(32, n))
        return wide, block, whole, preferred(less(256, n * n))

    found = alternatives(n, solve)
    assert served(found) == 1
    for k in (*range(1, 70), 300, 10**5):
        (one,) = taken(found, {n: k})
        assert k >= (8 if one[0] else 4) * one[1] and k >= 32 * one[2]
        if k in (37, *samples):
            assert one == (k > 16, k >= (8 if k > 16 else 4), k >= 32, k * k > 256)


def test_planners_that_look_at_example_lengths_get_conditions_that_exclude_each_other() -> None:
    scope, n = scope_of(2, 80)
    found = alternatives(n, lambda n: "few" if scope.value(n) < 10 else preferred(less(50, n)))
    for k in (1, 2, 37, 50, 80, 10**6):
        assert len(taken(found, {n: k})) == 1


def test_conditions_that_follow_from_others_are_left_out() -> None:
    _, n = scope_of()
    found = alternatives(n, lambda n: [n < 100, n < 257, n != 1000, n > 3, n > 1, n != 1])
    assert found[0].condition is all_of(less(n, 100), less(3, n))


def test_symbols_that_are_younger_than_samples_have_their_hints_there() -> None:
    scope, n = scope_of(2)
    m = scope.symbol("m", 1, None, 5)
    found = alternatives(n + m, lambda n: "few" if preferred(less(n, 10)) else "many")
    assert [taken(found, {n: 2, m: 5}), taken(found, {n: 37, m: 5})] == [["few"], ["many"]]


def launch(name: str, tasks: Length, *args: Any) -> Solution:
    return Solution((Launch(KernelSource("cpu", name, f"def {name}"), (Operand("x0"), *args), TaskRange(tasks)),))


def solution(solve: Callable[[Any], Solution], *samples: int) -> tuple[Dim, Solution]:
    _, n = scope_of(*samples)
    return n, one_solution(alternatives(n, solve))


def test_one_kernel_gets_arguments_by_length() -> None:
    n, made = solution(lambda n: launch("a", n, 64 if preferred(less(64, n)) else ceil_div(n, 2)), 100)
    (only,) = made.launches
    assert [(evaluate(only.geometry.tasks, {n: k}), evaluate(only.args[1], {n: k})) for k in (5, 100)] == [
        (5, 3),
        (100, 64),
    ]


def test_other_kernels_have_no_tasks() -> None:
    n, made = solution(lambda n: launch("a", n) if preferred(less(64, n)) else launch("b", 2 * n, n), 100)
    tasks = [
        {one.kernel.name: evaluate(one.geometry.tasks, {n: k}) for one in made.launches} for k in (1, 64, 65, 9999)
    ]
    assert tasks == [{"a": 0, "b": 2}, {"a": 0, "b": 128}, {"a": 65, "b": 0}, {"a": 9999, "b": 0}]


def test_scratch_memory_is_enough_for_all() -> None:
    def solve(n: Length) -> Solution:
        few = preferred(less(n, 50))
        return Solution(launch("a" if few else "b", n).launches, scratch=4096 if few else n)

    n, made = solution(solve, 1000)
    assert [evaluate(made.scratch, {n: k}) >= (4096 if k < 50 else k) for k in (1, 49, 50, 10**5)] == [True] * 4


def test_grids_of_alternatives_that_are_not_taken_have_no_blocks() -> None:
    def solve(n: Length) -> Solution:
        name = "a" if preferred(less(n, 50)) else "b"
        return Solution((Launch(KernelSource("gpu", name, name), (), Grid((n, 2, 1), (32, 1, 1))),))

    n, made = solution(solve, 1000)
    first = [launch.geometry.blocks[0] for launch in made.launches]  # type: ignore[union-attr]
    blocks = [[evaluate(own, {n: k}) for k in (1, 49, 50, 100)] for own in first]
    assert sorted(blocks) == [[0, 0, 50, 100], [1, 49, 0, 0]]


def test_calls_of_libraries_cannot_be_alternatives() -> None:
    def solve(n: Length) -> Solution:
        name = "a" if preferred(less(n, 50)) else "b"
        return Solution((Launch(KernelSource("gpu", name, name), (), OneCall()),))

    with pytest.raises(UnsupportedError, match="libraries"):
        solution(solve, 1000)


def test_one_order_of_weights_is_wanted_for_all_lengths() -> None:
    def solve(n: Length) -> Solution:
        small = preferred(less(n, 50))
        grid = Grid((n, 1, 1), (32, 1, 1))
        return Solution((Launch(KernelSource("gpu", "a", "a"), (), grid),), lane_permutation=8 if small else 0)

    with pytest.raises(UnsupportedError, match="one order"):
        solution(solve, 1000)
