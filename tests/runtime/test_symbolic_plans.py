"""Symbolic plans: one plan for many lengths, whose numbers are evaluated natively and written into a context."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.core.dim import Dim, Scope, equal, less, maximum, minimum, negate, select
from mgx_numba.errors import CompileError, MgxError, ShapeError, UnsupportedError
from mgx_numba.runtime.cpu import binding, executor, native_call
from mgx_numba.runtime.cpu.bind_kernel import BIND
from mgx_numba.runtime.cpu.executor import COMMON_KERNELS, EXECUTOR_KERNELS, Executable, View, executor_kernels
from mgx_numba.runtime.cpu.repeat import may_repeat, repeat
from mgx_numba.runtime.cpu.spmd import Job, StepRecord
from mgx_numba.runtime.explicit_lengths import explicit_lengths, with_explicit_lengths
from mgx_numba.runtime.host.plan_numbers import PlanNumbers, runs
from mgx_numba.runtime.host.sizes import EVALUATE
from mgx_numba.runtime.memory import address_of
from mgx_numba.runtime.plan import FallbackStep, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec, TensorView

from ..running import at_once

X, Y = Pointer(Region.PARAMETER, 0), Pointer(Region.PARAMETER, 1)
knows_objects = pytest.mark.skipif(
    not native_call.recognises_objects(), reason="an interpreter or NumPy with other objects"
)


def symbols(high: int | None = None) -> tuple[Dim, Dim]:
    scope = Scope()
    return scope.symbol("batch", 1, high, 37), scope.symbol("seq", 1, high, 41)


def test_every_plan_waited_for_kernels_of_symbols_jumps_and_loops(add_kernel: KernelSource) -> None:
    symbolic = sample_plan(add_kernel)
    fixed = dataclasses.replace(symbolic, steps=[], parameters=[], outputs=[], symbols=())
    assert set(executor_kernels(fixed)) == set(COMMON_KERNELS)
    assert set(executor_kernels(symbolic)) == {*COMMON_KERNELS, EVALUATE, BIND}
    host = FallbackStep(lambda arrays: list(arrays), (), (), kernels=(add_kernel,))
    assert executor_kernels(dataclasses.replace(fixed, steps=[host])) == EXECUTOR_KERNELS


def sample_plan(kernel: KernelSource) -> Plan:
    """x (batch, seq, 8) and y (seq, 3): results (batch, seq, 8) and (seq + 2, 8), see `expected`."""
    b, s = symbols(1000)
    tiles: Any = b * s
    half: Any = tiles * 64
    first, second = Pointer(Region.ARENA, 0, 0), Pointer(Region.ARENA, 0, half)
    short = less(s, 4)
    small = TaskRange(minimum(s, 8), maximum(s - 3, 1))
    steps = [
        Step(kernel, (X, first, b), TaskRange(tiles, s // 2), label="add batch", flops=tiles, bytes=half),
        Step(kernel, (first, second, 100), TaskRange(select(short, tiles, 0)), label="short", flops=1),
        Step(kernel, (first, second, s * 1000), TaskRange(select(negate(short), tiles, 0), 3), label="long", flops=1),
        Step(kernel, (second, Pointer(Region.OUTPUT, 0), s * 7 - b), TaskRange(tiles, 1000), label="out", bytes=half),
        # every row from a constant, then the first from another place in it, then the last ones from x
        Step(kernel, (Pointer(Region.CONSTANT, 0), Pointer(Region.OUTPUT, 1), 5), TaskRange(minimum(s + 2, 16))),
        Step(kernel, (Pointer(Region.CONSTANT, 0, (s % 4) * 64), Pointer(Region.OUTPUT, 1), b), small),
        Step(kernel, (Pointer(Region.PARAMETER, 0, (s - 1) * 64), Pointer(Region.OUTPUT, 1, s * 64), 0), TaskRange(1)),
    ]
    return Plan(
        steps,  # type: ignore[arg-type]
        2 * half,
        [np.arange(16 * 8)],
        [ParameterSpec("x", "int64", (b, s, 8)), ParameterSpec("y", "float32", (s, 3))],
        [TensorSpec("int64", (b, s, 8)), TensorSpec("int64", (s + 2, 8))],
        symbols=(b, s),
        condition=negate(less(s, 2) * less(b, 2)),
    )


def sample_inputs(batch: int, seq: int) -> list[np.ndarray]:
    return [np.arange(batch * seq * 8).reshape(batch, seq, 8), np.zeros((seq, 3), np.float32)]


def expected(batch: int, seq: int) -> list[np.ndarray]:
    """Both results; -1 where nothing is written."""
    (x, _), constant = sample_inputs(batch, seq), np.arange(16 * 8).reshape(16, 8)
    rows = np.full((seq + 2, 8), -1)
    count = min(seq + 2, 16)
    rows[:count] = constant[:count] + 5
    count = min(seq, 8)
    rows[:count] = constant[seq % 4 : seq % 4 + count] + batch
    rows[seq] = x.reshape(-1, 8)[seq - 1]
    return [x + batch + (100 if seq < 4 else 1000 * seq) + 7 * seq - batch, rows]


def same(found: list[np.ndarray], batch: int, seq: int) -> bool:
    first, rows = expected(batch, seq)
    written = rows != -1
    shapes = [array.shape for array in found] == [first.shape, rows.shape]
    return shapes and np.array_equal(found[0], first) and np.array_equal(found[1][written], rows[written])


def at(plan: Plan, values: Mapping[Dim, int]) -> Plan:
    """The plan that is not symbolic for some lengths, without the steps that have no tasks."""
    made = PlanNumbers(plan).at([values[symbol] for symbol in plan.symbols])
    made.steps = [step for step in made.steps if runs(step)]
    return made


LENGTHS = [(1, 5), (2, 3), (2, 3), (3, 1), (7, 40), (1, 2), (7, 40), (20, 4), (2, 300), (1, 5)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_one_plan_serves_lengths_in_any_order(add_kernel: KernelSource, threads: int) -> None:
    executable = Executable(sample_plan(add_kernel), threads)
    for batch, seq in LENGTHS:
        found = executable.run(sample_inputs(batch, seq))
        assert same(found, batch, seq)
        assert all(address_of(array) % 64 == 0 for array in found)


@knows_objects
@pytest.mark.parametrize("threads", [1, 2])
def test_the_native_entry_serves_the_first_call(add_kernel: KernelSource, threads: int) -> None:
    entry = Executable(sample_plan(add_kernel), threads).direct(np.ndarray)
    assert entry is not None and same(entry(dict(zip("xy", sample_inputs(2, 300)))) or [], 2, 300)


@knows_objects
@pytest.mark.parametrize("threads", [1, 2])
def test_the_native_entry_serves_lengths_in_any_order(
    add_kernel: KernelSource, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (binding, executor):
        monkeypatch.setattr(module, "FIRST_ARENA", 0)
    executable = Executable(sample_plan(add_kernel), threads)
    entry = executable.direct(np.ndarray)
    assert entry is not None
    assert entry(dict(zip("xy", sample_inputs(2, 300)))) is None  # the arena has to grow
    executable.run(sample_inputs(2, 300))
    for batch, seq in LENGTHS:
        found = entry(dict(zip("xy", sample_inputs(batch, seq))))
        assert found is not None and same(found, batch, seq)
    assert entry(dict(zip("xy", sample_inputs(3, 300)))) is None  # the arena has to grow
    assert same(executable.run(sample_inputs(3, 300)), 3, 300)
    assert same(entry(dict(zip("xy", sample_inputs(3, 300)))) or [], 3, 300)


@knows_objects
def test_lengths_that_are_not_served(add_kernel: KernelSource) -> None:
    plan = sample_plan(add_kernel)
    executable = Executable(plan, 1)
    entry = executable.direct(np.ndarray)
    assert entry is not None
    good = sample_inputs(2, 300)
    executable.run(good)
    assert executable.values(good) == dict(zip(plan.symbols, (2, 300)))
    wrong = {
        "a condition": sample_inputs(1, 1),
        "a range, below": [np.zeros((0, 4, 8), np.int64), np.zeros((4, 3), np.float32)],
        "a range, above": [np.zeros((1, 1001, 8), np.int64), np.zeros((1001, 3), np.float32)],
        "an axis of another input": [sample_inputs(2, 300)[0], np.zeros((299, 3), np.float32)],
        "an axis that is fixed": [np.zeros((2, 5, 7), np.int64), np.zeros((5, 3), np.float32)],
        "a rank": [np.zeros((2, 5), np.int64), np.zeros((5, 3), np.float32)],
        "a larger rank": [np.zeros((2, 5, 8, 1), np.int64), np.zeros((5, 3), np.float32)],
    }
    for name, inputs in wrong.items():
        assert not executable.serves(inputs), name
        assert (executable.values(inputs) is None) == (name.partition(" ")[0] == "an" or "rank" in name)
        assert entry(dict(zip("xy", inputs))) is None, name
        with pytest.raises(ShapeError, match="the plan"):
            executable.run(inputs)
        assert executable.serves(good)
        assert same(entry(dict(zip("xy", good))) or [], 2, 300)
    with pytest.raises(ShapeError, match=r"does not serve the lengths batch=1, seq=1$"):
        executable.run(wrong["a condition"])
    with pytest.raises(ShapeError, match=r"input y has shape \(299, 3\), the plan takes \(seq, 3\)"):
        executable.run(wrong["an axis of another input"])


def test_a_plan_without_symbols_serves_its_own_lengths(add_kernel: KernelSource) -> None:
    b, s = (plan := sample_plan(add_kernel)).symbols
    executable = Executable(at(plan, {b: 2, s: 3}), 1)
    assert executable.values(sample_inputs(2, 3)) == {}
    assert not executable.serves(sample_inputs(3, 2))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_binding_writes_the_tables_of_the_plan_for_these_lengths(add_kernel: KernelSource, threads: int) -> None:
    """`PlanTables` of the plan with numbers is the reference, for chains and looks, too."""
    rng = random.Random(threads)
    b, s = symbols()
    lengths: list[Any] = [0, 1, 3, b, s, b * s, maximum(s - 8, 0), select(less(b, s), b, 0), s % 5, (b + s) // 7]
    costs: list[Any] = [0, 1, 10**5, b * 10**5, s * 10**6, b * s * 10**7, 10**9]
    arena = Pointer(Region.ARENA, 0, 0)
    steps: list[Step | FallbackStep] = []
    for k in range(60):
        if rng.random() < 0.1:
            steps.append(FallbackStep(lambda _: [], (), ()))
        geometry = TaskRange(rng.choice(lengths), rng.choice(lengths))
        args = (arena, Pointer(Region.OUTPUT, 0, rng.choice(lengths) * 8), rng.choice(lengths), k)
        steps.append(Step(add_kernel, args, geometry, flops=rng.choice(costs), bytes=rng.choice(costs)))
    plan = Plan(steps, 64, [], [ParameterSpec("x", "int64", (b, s))], [TensorSpec("int8", (s,))], symbols=(b, s))
    for few in (False, True):
        if few:
            steps[:] = steps[:3]
        executable = Executable(plan, threads)
        for batch, seq in [(1, 1), (1, 9), (2, 3), (40, 2), (100, 300)]:
            fixed = Executable(at(plan, {b: batch, s: seq}), threads)
            context, other = executable.take_context(), fixed.take_context()
            binding = context.binding
            assert binding is not None
            binding.settle([np.zeros((batch, seq), np.int8)])
            ours, theirs = context.kept[1], other.kept[1]
            count = len(theirs) - 1
            assert len(binding.kept()) == count and binding.records(0, len(ours) - 1) == (0, count)
            own = [StepRecord.FUNCTION, StepRecord.TASKS, StepRecord.GRAIN, StepRecord.CHAIN, StepRecord.PIECE]
            np.testing.assert_array_equal(ours[:count, own], theirs[:count, own])
            assert context.job[Job.BRIEF] == other.job[Job.BRIEF]
            assert bool(context.job[Job.LONG]) == fixed.tables.long
            for k, native in enumerate(binding.kept()):
                at_ours, at_theirs = executable.tables.starts[native], fixed.tables.starts[k]
                slots = [context.kept[0][at_ours : at_ours + 4], other.kept[0][at_theirs : at_theirs + 4]]
                assert slots[0][0] == address_of(binding.arena) and slots[1][0] == address_of(other.arena)
                np.testing.assert_array_equal(slots[0][1:], slots[1][1:])
                ours_patch, theirs_patch = int(ours[k, StepRecord.PATCH]), int(theirs[k, StepRecord.PATCH])
                assert context.kept[4][ours_patch, 2] == fixed.tables.patches[theirs_patch, 2]
            executable.return_context(context)


def test_steps_that_are_left_out_are_not_told_of(add_kernel: KernelSource) -> None:
    executable = Executable(sample_plan(add_kernel), 2)
    b, s = executable.plan.symbols
    arena = TensorView(Pointer(Region.ARENA, 0, b * s * 64), "int64", (b, s, 8), (s * 8, 8, 1))
    for batch, seq in LENGTHS:
        seen: dict[int, int] = {}

        def note(index: int, step: Any, seconds: float, view: View, seen: dict[int, int] = seen) -> None:
            assert seconds > 0 and type(step.flops) is type(step.bytes) is type(step.geometry.tasks) is int
            seen[index] = int(view(arena)[-1, -1, -1])

        inputs = sample_inputs(batch, seq)
        assert same(executable.run_traced(inputs, note), batch, seq)
        left = 2 if seq < 4 else 1
        assert list(seen) == [k for k in range(7) if k != left]
        assert seen[3] == inputs[0].flat[-1] + batch + (100 if seq < 4 else 1000 * seq)
        results, spans = executable.run_timed(inputs)
        assert same(results, batch, seq)
        assert {span.step for span in spans} <= set(seen)
        plan = executable.plan_for(inputs)
        assert [step.label for step in plan.steps] == [executable.plan.steps[k].label for k in seen]
        assert same(Executable(plan, 1).run(inputs), batch, seq)
        seconds = executable.time_steps(inputs, 2)
        assert seconds.shape == (2, 7) and not seconds[:, left].any()


def test_steps_with_empty_results_are_told_of(add_kernel: KernelSource) -> None:
    scope = Scope()
    n = scope.symbol("n", 0, None, 5)
    view = TensorView(Pointer(Region.OUTPUT, 0), "int64", (n, 8), (8, 1))
    step = Step(add_kernel, (X, Pointer(Region.OUTPUT, 0), 1), TaskRange(n), outputs=(view,))
    plan = Plan([step], 0, [], [ParameterSpec("x", "int64", (n, 8))], [TensorSpec("int64", (n, 8))], symbols=(n,))
    executable = Executable(plan, 1)
    for rows in (3, 0, 2):
        shapes: list[tuple[int, ...]] = []
        x = np.arange(rows * 8).reshape(rows, 8)
        (y,) = executable.run_traced([x], lambda i, s, t, see, shapes=shapes: shapes.append(see(view).shape))
        np.testing.assert_array_equal(y, x + 1)
        assert shapes == [(rows, 8)]


def test_functions_of_host_steps_are_bound_once_for_each_set_of_lengths(add_kernel: KernelSource) -> None:
    b, s = symbols()
    calls: list[dict[Dim, int]] = []

    def bind(values: Mapping[Dim, int]) -> Any:
        calls.append(dict(values))
        return lambda arrays: [arrays[0] * values[s]]

    tiles: Any = b * s
    moved = Pointer(Region.ARENA, 0, tiles * 64)
    view = TensorView(Pointer(Region.ARENA, 0, 0), "int64", (s, b, 8), (8, 8 * s, 1))
    other = TensorView(moved, "int64", (s, b, 8), (8 * b, 8, 1))
    whole = TensorView(moved, "int64", (tiles * 8,), (1,))
    host = TensorView(Pointer(Region.HOST, 0), "int64", (), ())
    result = TensorView(Pointer(Region.OUTPUT, 1), "int64", (), ())
    steps = [
        FallbackStep(lambda arrays: [np.zeros(64, np.int64)], (), (host,)),
        Step(add_kernel, (X, Pointer(Region.ARENA, 0, 0), 0), TaskRange(tiles)),
        FallbackStep(lambda arrays: [], (view,), (other,), bind=bind),
        # one of two alternatives, the second of which reads what only a later step makes
        Step(add_kernel, (moved, Pointer(Region.OUTPUT, 0), s), TaskRange(select(less(b, 3), tiles, 0), 4)),
        Step(add_kernel, (moved, Pointer(Region.OUTPUT, 0), s * 2), TaskRange(select(less(b, 3), 0, tiles))),
        FallbackStep(lambda arrays: [arrays[0].copy()], (whole,), (result,)),
    ]
    plan = Plan(
        steps,  # type: ignore[arg-type]
        2 * tiles * 64,
        [],
        [ParameterSpec("x", "int64", (b, s, 8))],
        [TensorSpec("int64", (s, b, 8)), TensorSpec("int64", None)],
        symbols=(b, s),
    )
    executable = Executable(plan, 2)
    for batch, seq in [(2, 3), (2, 3), (5, 2), (2, 3), (3, 7)]:
        x = np.arange(batch * seq * 8).reshape(batch, seq, 8)
        product = x.transpose(1, 0, 2) * seq
        for run in (executable.run, lambda inputs: executable.run_timed(inputs)[0]):
            first, second = run([x])
            np.testing.assert_array_equal(first, product + (seq if batch < 3 else 2 * seq))
            np.testing.assert_array_equal(second, product.reshape(-1))
    fixed = Executable(executable.plan_for([np.arange(16).reshape(1, 2, 8)]), 1)
    np.testing.assert_array_equal(fixed.run([x[:1, :2]])[1], 2 * x[:1, :2].reshape(-1))
    assert calls.pop() == {b: 1, s: 2}
    assert calls == [{b: batch, s: seq} for batch, seq in [(2, 3), (5, 2), (2, 3), (3, 7)]]


def test_results_of_host_steps_are_held_against_the_evaluated_lens(add_kernel: KernelSource) -> None:
    b, s = symbols()
    view = TensorView(Pointer(Region.OUTPUT, 0), "int64", (b + s,), (1,))
    plan = Plan(
        [FallbackStep(lambda arrays: [np.zeros(5, np.int64)], (), (view,), label="five")],
        0,
        [],
        [ParameterSpec("x", "int64", (b, s))],
        [TensorSpec("int64", (b + s,))],
        symbols=(b, s),
    )
    executable = Executable(plan, 1)
    assert executable.run([np.zeros((2, 3), np.int64)])[0].shape == (5,)
    with pytest.raises(ShapeError, match=r"fallback step five: returned shape \(5,\), expected \(6,\)"):
        executable.run([np.zeros((2, 4), np.int64)])


def huge_plan(kernel: KernelSource, **changes: Any) -> tuple[Plan, Dim]:
    """A plan over x (n, m), whose m may be 0, so that n may be anything."""
    scope = Scope()
    n, m = scope.symbol("n", 1, None, 5), scope.symbol("m", 0, None, 5)
    plan = Plan([], 0, [], [ParameterSpec("x", "int8", (n, m))], [], symbols=(n, m))
    return dataclasses.replace(plan, **{key: change(n) for key, change in changes.items()}), n


X_ADD = (X, Pointer(Region.OUTPUT, 0))
HUGE: dict[str, dict[str, Any]] = {
    "an output": {"outputs": lambda n: [TensorSpec("int64", (n, n, n))]},
    "outputs together": {"outputs": lambda n: [TensorSpec("int8", (n, 1 << 15)) for _ in range(4)]},
    "the arena": {"arena_bytes": lambda n: n * n},
    "a condition": {"condition": lambda n: negate(equal(n * n, 9))},
    "a length": {"outputs": lambda n: [TensorSpec("int64", (n * n, 0))]},
}


@pytest.mark.parametrize("kind", HUGE)
def test_sizes_that_cannot_be_addressed_are_an_error(add_kernel: KernelSource, kind: str) -> None:
    plan, _ = huge_plan(add_kernel, **HUGE[kind])
    executable = Executable(plan, 1)
    assert len(executable.run([np.zeros((2, 0), np.int8)])) == len(plan.outputs)
    entry = executable.direct(np.ndarray)
    big = np.zeros((1 << 40, 0), np.int8)
    assert entry is None or entry({"x": big}) is None
    with pytest.raises(MgxError, match="for the lengths n=1099511627776, m=0 sizes exceed"):
        executable.run([big])
    assert entry is None or entry({"x": np.zeros((2, 0), np.int8)}) is not None


@pytest.mark.parametrize("change", ["an argument", "tasks", "a grain"])
def test_invalid_numbers_of_steps_are_an_error_if_the_step_runs(add_kernel: KernelSource, change: str) -> None:
    scope = Scope()
    n, m = scope.symbol("n", 1, None, 5), scope.symbol("m", 0, None, 5)
    huge: Any = n * n
    runs = select(less(m, 1), 0, 1)
    geometry = {"an argument": TaskRange(runs), "tasks": TaskRange(runs * huge), "a grain": TaskRange(runs, huge)}
    arena = Pointer(Region.ARENA, 0, 0)
    step = Step(add_kernel, (arena, arena, huge if change == "an argument" else 1), geometry[change])
    plan = Plan([step], 128, [], [ParameterSpec("x", "int8", (n, m, 0))], [], symbols=(n, m))
    executable = Executable(plan, 1)
    executable.run([np.zeros((1 << 40, 0, 0), np.int8)])
    with pytest.raises(MgxError, match="sizes exceed"):
        executable.run([np.zeros((1 << 40, 1, 0), np.int8)])
    executable.run([np.zeros((1, 1, 0), np.int8)])


def test_memory_that_is_not_there_is_an_error(add_kernel: KernelSource) -> None:
    plan, _ = huge_plan(add_kernel, arena_bytes=lambda n: n)
    executable = Executable(plan, 1)
    with pytest.raises(MgxError, match="not enough memory for the lengths n=1125899906842624, m=0"):
        executable.run([np.zeros((1 << 50, 0), np.int8)])
    plan, _ = huge_plan(add_kernel, outputs=lambda n: [TensorSpec("int8", (n,))])
    executable = Executable(plan, 1)
    (y,) = executable.run([np.zeros((1 << 10, 0), np.int8)])
    assert y.shape == (1 << 10,)
    entry = executable.direct(np.ndarray)
    assert entry is None or entry({"x": np.zeros((1 << 50, 0), np.int8)}) is None
    with pytest.raises(MgxError, match="not enough memory for the lengths n=1125899906842624, m=0"):
        executable.run([np.zeros((1 << 50, 0), np.int8)])


def test_too_many_tiles_are_an_error(add_kernel: KernelSource) -> None:
    plan, n = huge_plan(add_kernel)
    plan.steps = [Step(add_kernel, (), TaskRange(0)), Step(add_kernel, (), TaskRange(n - 1), label="huge")]
    executable = Executable(plan, 1)
    executable.run([np.zeros((1, 0), np.int8)])
    with pytest.raises(UnsupportedError, match="step huge: 2147483648 tiles for the lengths"):
        executable.run([np.zeros(((1 << 31) + 1, 0), np.int8)])


@pytest.mark.parametrize("first", [0, 4096, binding.FIRST_ARENA])
def test_arenas_grow_and_are_kept(add_kernel: KernelSource, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (binding, executor):
        monkeypatch.setattr(module, "FIRST_ARENA", first)
    executable = Executable(sample_plan(add_kernel), 1)
    addresses = []
    for seq in range(2, 600):
        assert same(executable.run(sample_inputs(2, seq)), 2, seq)
        (context,) = executable.contexts.values()
        assert context.binding is not None
        addresses.append((address_of(context.binding.arena), context.binding.capacity))
    assert len(dict.fromkeys(addresses)) < 30
    before = addresses[-1]
    assert executable.arena_bytes == before[1]
    executable.run(sample_inputs(1, 2))
    (context,) = executable.contexts.values()
    assert context.binding is not None and context.binding.capacity == before[1]


def test_threads_of_python_run_different_lengths_at_once(add_kernel: KernelSource) -> None:
    executable = Executable(sample_plan(add_kernel), 2)
    entry = executable.direct(np.ndarray)

    def caller(number: int) -> None:
        rng = random.Random(number)
        for _ in range(200):
            batch, seq = rng.randint(2, 9), rng.randint(1, 40)
            inputs = sample_inputs(batch, seq)
            found = entry(dict(zip("xy", inputs))) if entry is not None else None
            assert same(executable.run(inputs) if found is None else found, batch, seq)

    at_once(caller, range(6))


def test_a_symbol_that_is_no_axis_of_a_parameter_is_refused(add_kernel: KernelSource) -> None:
    b, s = symbols()
    plan = Plan([], 0, [], [ParameterSpec("x", "int64", (b, s + 1))], [], symbols=(b, s))
    with pytest.raises(CompileError, match="length seq"):
        Executable(plan, 1)
    plan = Plan([], s, [], [ParameterSpec("x", "int64", (b, s + 1))], [], symbols=(b,))  # type: ignore[arg-type]
    with pytest.raises(CompileError, match="length seq"):
        Executable(plan, 1)


def test_offsets_may_nest_as_deep_as_a_plan_has_steps(add_kernel: KernelSource) -> None:
    b, s = symbols()
    places: list[Any] = [0]
    for _ in range(600):
        places.append(maximum(places[-1] + b * 64, s * 64))
    steps: list[Step | FallbackStep] = []
    for source, target in itertools.pairwise(places):
        view = TensorView(Pointer(Region.ARENA, 0, target), "int64", (b, 8), (8, 1))
        begin = X if not steps else Pointer(Region.ARENA, 0, source)
        steps.append(Step(add_kernel, (begin, view.pointer, 1), TaskRange(b), outputs=(view,)))
    steps.append(Step(add_kernel, (Pointer(Region.ARENA, 0, places[-1]), Pointer(Region.OUTPUT, 0), 0), TaskRange(b)))
    plan = Plan(
        steps,
        places[-1] + b * 64,
        [],
        [ParameterSpec("x", "int64", (b, 8)), ParameterSpec("y", "int8", (s,))],
        [TensorSpec("int64", (b, 8))],
        symbols=(b, s),
    )
    executable = Executable(plan, 1)
    for batch, seq in ((3, 4), (1, 3000)):
        inputs = [np.arange(batch * 8).reshape(batch, 8), np.zeros(seq, np.int8)]
        np.testing.assert_array_equal(executable.run(inputs)[0], inputs[0] + 600)
        seen: list[int] = []
        executable.run_traced(
            inputs, lambda i, step, t, see, seen=seen: seen.extend(see(v)[0, 0] for v in step.outputs)
        )
        assert seen == list(range(1, 601))


def test_a_loop_of_a_symbolic_body_is_one_native_function(add_kernel: KernelSource) -> None:
    """Run k adds 1 to the carried x, and keeps x + 10 * seq of all rows but the last."""
    b, s = symbols()
    body = "store_scalar(pointer_uint8(args, 1), 0, load_scalar(pointer_uint8(args, 0), 0))"
    flag = cpu_kernel("copy_flag", f"def kernel(args, begin, end):\n    {body}\n")
    x = Pointer(Region.PARAMETER, 2)
    steps: list[Step | FallbackStep] = [
        Step(flag, (Pointer(Region.PARAMETER, 1), Pointer(Region.OUTPUT, 0)), TaskRange(1)),
        Step(add_kernel, (x, Pointer(Region.OUTPUT, 1), 5), TaskRange(select(less(b, 3), 0, b))),
        Step(add_kernel, (x, Pointer(Region.OUTPUT, 1), 1), TaskRange(b)),
        Step(add_kernel, (x, Pointer(Region.OUTPUT, 2), s * 10), TaskRange(b - 1)),
    ]
    parameters = [("n", "int64", ()), ("go", "bool", ()), ("x", "int64", (b, 8)), ("y", "int8", (s, 0))]
    plan = Plan(
        steps,
        0,
        [],
        [ParameterSpec(*one) for one in parameters],
        [TensorSpec("bool", ()), TensorSpec("int64", (b, 8)), TensorSpec("int64", (b - 1, 8))],
        symbols=(b, s),
    )
    assert may_repeat(plan, 1) and not may_repeat(plan, 2)
    executable = Executable(plan, 1)
    for batch, seq in ((2, 3), (5, 1), (1, 7)):
        start = np.arange(batch * 8).reshape(batch, 8)
        inputs = [np.zeros((), np.int64), np.ones((), np.bool_), start, np.zeros((seq, 0), np.int8)]
        done = repeat(executable, inputs, 1, 4, str)
        assert done is not None
        (going, last), (rows,) = done
        assert going.all()
        np.testing.assert_array_equal(last, start + 4)
        np.testing.assert_array_equal(rows, np.stack([start[:-1] + k + 10 * seq for k in range(4)]))
    changing = dataclasses.replace(plan, outputs=[*plan.outputs[:1], TensorSpec("int64", (b + 1, 8)), plan.outputs[2]])
    assert repeat(Executable(changing, 1), inputs, 1, 4, str) is None


def test_symbols_that_no_parameter_has_are_told_by_parameters_without_elements(add_kernel: KernelSource) -> None:
    b, s = symbols()
    plan = Plan(
        [Step(add_kernel, (X, Pointer(Region.OUTPUT, 0), s), TaskRange(b))],
        0,
        [],
        [ParameterSpec("x", "int64", (b, 8))],
        [TensorSpec("int64", (b, 8))],
        symbols=(b, s),
    )
    told = with_explicit_lengths(plan)
    assert [p.lens for p in told.parameters] == [(b, 8), (s, 0)]
    executable = Executable(told, 1)
    for batch, seq in ((2, 3), (2, 500)):
        x = np.arange(batch * 8).reshape(batch, 8)
        lengths = explicit_lengths(told, {b: batch, s: seq})
        np.testing.assert_array_equal(executable.run([x, *lengths.values()])[0], x + seq)
