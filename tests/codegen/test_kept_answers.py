"""Answers about problems with symbolic lengths that are kept for other programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from mgx_numba.api.program import program as public_program
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Launch, TaskRange
from mgx_numba.core.dim import Dim, Scope, permitted, shared_space
from mgx_numba.core.shape import DynamicDimension
from mgx_numba.errors import UnsupportedError
from mgx_numba.frontends.onnx import parse_onnx
from mgx_numba.graph.program import Program
from mgx_numba.targets.cpu.lower import lowering
from mgx_numba.targets.lowering.job import LoweringJob
from mgx_numba.targets.lowering.solutions import kept_answer
from mgx_numba.targets.options import TargetOptions
from tests.dynamic.models import FLOAT, Graph


@pytest.fixture
def scope_of() -> Iterator[Callable[..., tuple[Scope, list[Dim]]]]:
    """A function that returns a new scope, which the test uses from then on, with symbols from 1 to ``high``."""
    with contextlib.ExitStack() as used:

        def made(*names: str, high: int = 512) -> tuple[Scope, list[Dim]]:
            scope = used.enter_context(Scope(shared_space()))
            return scope, [scope.symbol(name, 1, high, 37 + 4 * k) for k, name in enumerate(names)]

        yield made


def test_other_problems_ranges_names_samples_and_guards_have_answers_of_their_own(scope_of):
    asked = []

    def ask(problem: Any, question: str = "question") -> None:
        kept_answer(question, problem, lambda given: asked.append(given) or given)

    for _ in range(2):
        _, (b, s) = scope_of("b", "s")
        ask((b, s))
    assert len(asked) == 1
    ask((s, b))
    ask((b, s), "another question")
    ask((b, s, 1))
    assert len(asked) == 4
    ask(tuple(scope_of("b", "s", high=511)[1]))
    ask(tuple(scope_of("b", "t")[1]))
    scope, (b, s) = scope_of("b", "s")
    scope.samples = [{b: 1, s: 2}]
    ask((b, s))
    assert len(asked) == 7
    assert b < s + 1  # a guard
    ask((b, s))
    assert len(asked) == 8


def test_guards_of_an_answer_are_guards_of_every_program_with_their_place(scope_of):
    def answer(given: Any) -> Any:
        n, m = given
        return (n + m) if permitted(n < m + 1) else n

    for _ in range(2):
        scope, (b, s) = scope_of("b", "s")
        assert kept_answer("question", (b, s), answer) is b + s
        (guard,) = scope.guards.values()
        assert guard.answer and "test_kept_answers" in guard.place


def test_an_error_is_raised_each_time_and_its_guards_are_recorded(scope_of):
    count = 0

    def answer(given: Any) -> Any:
        nonlocal count
        count += 1
        if given[0] < 100:
            raise UnsupportedError("short")

    for k in range(2):
        scope, (b,) = scope_of("b")
        with pytest.raises(UnsupportedError, match="short"):
            kept_answer("question", (b,), answer)
        assert count == k + 1 and len(scope.guards) == 1


def test_answers_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch, scope_of):
    monkeypatch.setattr("mgx_numba.targets.lowering.solutions.MOST_ANSWERS", 2)
    asked = []
    _, (b,) = scope_of("b")
    for n in (1, 2, 1, 3, 1, 3):
        assert kept_answer("question", (b, n), lambda given: asked.append(given[1]) or given[0] + given[1]) is b + n
    assert asked == [1, 2, 3, 1]


def filling(length: int, value: float) -> Launch:
    """Plan a kernel that gets the bits of a value."""
    return Launch(KernelSource("cpu", "fill", "fill"), (length, value.hex()), TaskRange(length))  # type: ignore[arg-type]


def test_arguments_that_are_equal_as_numbers_only_have_plans_of_their_own(scope_of):
    for value in (0.0, -0.0, 1.0):
        scope, (b,) = scope_of("b")
        low = lowering(LoweringJob(Program(), TargetOptions(), scope))
        (launch,) = low.solve(filling, b, value).launches
        assert launch.args == (b, value.hex())


def test_a_second_compilation_makes_the_plan_of_the_first():
    g = Graph()
    y = "x"
    for k, n in ((32, 48), (48, 32)):
        y = g.op("Softmax", g.op("Gemm", y, g.weights(k, n), g.weights(n)), axis=1)
    model = g.model({"x": (FLOAT, ["N", 32])}, [g.op("Transpose", y, perm=[1, 0])])
    nets = [
        public_program.wrap(parse_onnx(model, default_dyn_dim_value=DynamicDimension(0, 4096))).compile("cpu")
        for _ in range(2)
    ]
    first, second = ([kernel.text for kernel in net.kernels()] for net in nets)
    assert first == second
    assert str(nets[0].open_plans()) == str(nets[1].open_plans())
    for rows in (0, 1, 5, 64, 700):
        x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
        (a,), (b,) = (net.run({"x": x}) for net in nets)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
