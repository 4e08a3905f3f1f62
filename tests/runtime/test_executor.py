"""Plans of kernels: order, regions, tiles, tracing, and concurrent calls."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.errors import OptionError, UnsupportedError
from mgx_numba.runtime.cpu import threads
from mgx_numba.runtime.cpu.executor import Executable, View
from mgx_numba.runtime.cpu.plan_tables import PlanTables
from mgx_numba.runtime.cpu.spmd import Pool, StepRecord
from mgx_numba.runtime.memory import address_of
from mgx_numba.runtime.plan import FallbackStep, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec, TensorView

from ..running import at_once, said

X, Y = Pointer(Region.PARAMETER, 0), Pointer(Region.OUTPUT, 0)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def sum_plan(kernel: KernelSource, tasks: Sequence[int], grain: int = 1, tiles: int = 16) -> Plan:
    """Step i adds i + 1 to the first ``tasks[i]`` tiles; the last copies all of them to the output."""
    lens = (tiles * 8,)
    half = tiles * 64
    steps: list[Step | FallbackStep] = [Step(kernel, (X, Pointer(Region.ARENA, 0, 0), 0), TaskRange(tiles, grain))]
    for i, count in enumerate(tasks):
        source, target = Pointer(Region.ARENA, 0, 0), Pointer(Region.ARENA, 0, half)
        steps.append(Step(kernel, (source, target, i + 1), TaskRange(count, grain), label=f"add {i + 1}"))
        steps.append(Step(kernel, (target, source, 0), TaskRange(count, grain)))
    steps.append(Step(kernel, (Pointer(Region.ARENA, 0, 0), Y, 0), TaskRange(tiles, grain)))
    return Plan(steps, 2 * half, [], [ParameterSpec("x", "int64", lens)], [TensorSpec("int64", lens)])


def expected_sum(x: np.ndarray, tasks: Sequence[int]) -> np.ndarray:
    y = x.copy()
    for i, count in enumerate(tasks):
        y[: count * 8] += i + 1
    return y


@pytest.mark.parametrize("num_threads", [1, 2, 4, 7])
@pytest.mark.parametrize("grain", [1, 3, 100])
def test_every_tile_runs_once_in_step_order(add_kernel: KernelSource, num_threads: int, grain: int) -> None:
    tasks = [16, 1, 1, 0, 7, 1, 16, 2]
    executable = Executable(sum_plan(add_kernel, tasks, grain), num_threads)
    x = np.arange(128)
    for _ in range(50):
        (y,) = executable.run([x])
        np.testing.assert_array_equal(y, expected_sum(x, tasks))


def test_outputs_are_new_and_aligned(add_kernel: KernelSource) -> None:
    executable = Executable(sum_plan(add_kernel, []))
    first, second = (executable.run([np.arange(128)])[0] for _ in range(2))
    assert not np.shares_memory(first, second)
    assert address_of(first) % 64 == address_of(second) % 64 == 0


def test_constants_and_offsets_are_addressed_in_bytes(add_kernel: KernelSource) -> None:
    constant = np.arange(32)
    steps = [Step(add_kernel, (Pointer(Region.CONSTANT, 1, 64), Pointer(Region.OUTPUT, 0, 64), 5), TaskRange(1))]
    plan = Plan(steps, 0, [np.zeros(1), constant], [], [TensorSpec("int64", (16,))])
    np.testing.assert_array_equal(Executable(plan).run([])[0][8:], constant[8:16] + 5)


@pytest.mark.parametrize("parallel", [True, False, None])
def test_parallel_attribute_changes_no_result(add_kernel: KernelSource, parallel: bool | None) -> None:
    plan = sum_plan(add_kernel, [4, 16])
    plan.parallel = parallel
    x = np.arange(128)
    np.testing.assert_array_equal(Executable(plan, 2).run([x])[0], expected_sum(x, [4, 16]))


def test_single_claims_form_chains_that_end_with_their_segment(add_kernel: KernelSource) -> None:
    one, many = Step(add_kernel, (X, Y, 0), TaskRange(2, 2)), Step(add_kernel, (X, Y, 0), TaskRange(3, 2))
    plan = Plan([one, one, many, one, FallbackStep(lambda _: [], (), ()), one, one], 0, [], [], [])
    tables = PlanTables(plan, dict.fromkeys(plan.kernels(), 0), [], 2)
    assert tables.steps[:-1, StepRecord.CHAIN].tolist() == [2, 1, 0, 1, 2, 1]
    assert tables.segments == [(0, 4), plan.steps[4], (4, 6)]
    assert tables.native_index == [0, 1, 2, 3, -1, 4, 5]


def test_tracing_shows_each_step_and_its_memory(add_kernel: KernelSource) -> None:
    plan = sum_plan(add_kernel, [16, 16])
    arena = TensorView(Pointer(Region.ARENA, 0, 0), "int64", (2, 4), (1, 2))
    seen: list[tuple[int, str, int]] = []

    def note(index: int, step: Step | FallbackStep, seconds: float, view: View) -> None:
        assert seconds > 0
        seen.append((index, step.label, int(view(arena)[1, 3])))

    x = np.arange(128)
    (y,) = Executable(plan, 2).run_traced([x], note)
    np.testing.assert_array_equal(y, expected_sum(x, [16, 16]))
    assert seen == [(0, "", 7), (1, "add 1", 7), (2, "", 8), (3, "add 2", 8), (4, "", 10), (5, "", 10)]


def test_step_times_have_a_row_an_iteration(add_kernel: KernelSource) -> None:
    seconds = Executable(sum_plan(add_kernel, [1])).time_steps([np.arange(128)], 3)
    assert seconds.shape == (3, 4) and (seconds > 0).all()


@pytest.mark.parametrize("num_threads", [2, 5])
def test_eight_python_threads_run_one_executable(add_kernel: KernelSource, num_threads: int) -> None:
    tasks = [16, 1, 1, 9, 16]
    executable = Executable(sum_plan(add_kernel, tasks, 2), num_threads)

    def caller(number: int) -> None:
        for i in range(1000):
            x = np.full(128, number * 1000 + i)
            assert np.array_equal(executable.run([x])[0], expected_sum(x, tasks))

    at_once(caller, range(8))


def test_too_many_tiles_is_an_error(add_kernel: KernelSource) -> None:
    plan = Plan([Step(add_kernel, (X, Y, 0), TaskRange(1 << 31), label="huge")], 0, [], [], [])
    with pytest.raises(UnsupportedError, match="huge"):
        Executable(plan)


@pytest.mark.parametrize("value", ["0", "-1", "many", "5000"])
def test_bad_number_of_threads_in_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_NUM_THREADS", value)
    with pytest.raises(OptionError, match="MGX_NUM_THREADS"):
        threads.default_num_threads()


def test_number_of_threads_defaults_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MGX_NUM_THREADS", raising=False)
    assert 1 <= threads.resolve_num_threads(None) <= (os.cpu_count() or 1)
    monkeypatch.setenv("MGX_NUM_THREADS", "3")
    assert threads.resolve_num_threads(None) == 3
    assert threads.resolve_num_threads(2) == 2


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, np.inf),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, np.inf),
        ({}, np.inf),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads.cgroup_quota(tmp_path) == quota


PRELUDE = """
import os, sys, threading
import numpy as np
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import ParameterSpec, Plan, Pointer, Region, Step, TensorSpec
kernel = cpu_kernel("triple_kernel", '''
def kernel(args, begin, end):
    x, y = words_at(args, 0), words_at(args, 1)
    for i in range(begin, end):
        y[i] = x[i] * 3
''')
step = Step(kernel, (Pointer(Region.PARAMETER, 0), Pointer(Region.OUTPUT, 0)), TaskRange(64))
plan = Plan([step] * 10, 0, [], [ParameterSpec("x", "int64", (64,))], [TensorSpec("int64", (64,))])
executable = Executable(plan, 3)
def check():
    x = np.arange(64)
    return all((executable.run([x])[0] == 3 * x).all() for _ in range(100))
assert check()
"""


def run_program(body: str) -> str:
    return said(PRELUDE + body)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
def test_interrupted_calls_keep_no_context() -> None:
    body = """
import signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
x = [np.arange(64)]
for number in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + number % 100 * 1e-6)
        while True:
            executable.run(x)
    except KeyboardInterrupt:
        pass
print(sorted(executable.contexts) == sorted(executable.idle), check())
"""
    assert run_program(body) == "True True"


@needs_fork
def test_child_of_a_fork_has_workers_of_its_own() -> None:
    body = """
stop = []
other = threading.Thread(target=lambda: [check() for _ in iter(lambda: bool(stop), True)])
other.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if check() and check() else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.append(1)
other.join()
print(check())
"""
    assert run_program("import warnings; warnings.simplefilter('ignore')" + body) == "True"


def test_interpreter_exits_while_workers_wait_and_others_run() -> None:
    body = """
threading.Thread(target=lambda: [check() for _ in iter(int, 1)], daemon=True).start()
import atexit
atexit.register(lambda: print(check()))
"""
    assert run_program(body) == "True"


def test_calls_after_the_pool_stopped_run_alone() -> None:
    body = """
from mgx_numba.runtime.cpu.threads import pool
pool().stop()
print(check(), any(thread.is_alive() for thread in pool().workers))
"""
    assert run_program(body) == "True False"


MEET = cpu_kernel(
    "meet_kernel",
    """
def kernel(args, begin, end):
    counter, met = words_at(args, 0), words_at(args, 1)
    for tile in range(begin, end):
        atomic_add(counter, 0, 1)
        patience = 20000
        while atomic_load(counter, 0) < 2 and patience > 0:
            yield_thread()
            patience -= 1
        met[tile * 8] = patience > 0
""",
)


@pytest.mark.parametrize("idle_seconds", [0.0, 0.02])
def test_two_tiles_run_at_the_same_time(idle_seconds: float) -> None:
    """Each of two tiles waits, for a while, until the other has begun; workers may be asleep at the start."""
    steps: list[Step | FallbackStep] = [Step(MEET, (Pointer(Region.PARAMETER, 0), Y), TaskRange(2))]
    plan = Plan(steps, 0, [], [ParameterSpec("counter", "int64", (1,))], [TensorSpec("int64", (16,))])
    executable = Executable(plan, 2)
    for _ in range(20):
        time.sleep(idle_seconds)
        (met,) = executable.run([np.zeros(1, np.int64)])
        if met[0] and met[8]:
            return
    pytest.fail("no two tiles ever ran at the same time")


@pytest.fixture
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> threads.ThreadPool:
    """A pool without workers in place of the process's, whose words say what a test writes: two CPUs, never asked for.

    Its callers do all tasks, whoever they called; ``GENERATION`` counts how often they called workers.
    """
    made = threads.ThreadPool()
    made.may_grow = False
    made.block[Pool.CPUS] = 2
    made.block[Pool.CONFINED] = NEVER
    monkeypatch.setattr(threads, "_pool", made)
    return made


NEVER = 1 << 62
"""Nanoseconds that no clock has come to."""


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="no clock that kernels know")
@pytest.mark.parametrize(
    ("moved", "sleepers", "ended", "called"),
    [
        (64, 0, 0, 1),  # workers are awake
        (64, 1, 0, 0),  # they sleep, and the last brief job ended long ago
        (64, 1, NEVER, 1),  # they sleep, and it ended less than 20 us ago
        (10**9, 1, 0, 1),  # the job is not brief
    ],
)
def test_a_brief_call_wakes_workers_only_soon_after_another(
    add_kernel: KernelSource, empty_pool: threads.ThreadPool, moved: int, sleepers: int, ended: int, called: int
) -> None:
    step = Step(add_kernel, (X, Y, 1), TaskRange(16), bytes=moved)
    plan = Plan([step], 0, [], [ParameterSpec("x", "int64", (128,))], [TensorSpec("int64", (128,))])
    executable = Executable(plan, 2)
    words = empty_pool.block
    words[Pool.SLEEPERS], words[Pool.ENDED] = sleepers, ended
    x = np.arange(128)
    np.testing.assert_array_equal(executable.run([x])[0], x + 1)
    assert words[Pool.GENERATION] == called
    assert (words[Pool.ENDED] != ended) == (not called)  # a call that woke nobody says when it ended


@pytest.mark.parametrize(("flops", "moved"), [(10**9, 64), (64, 10**9), (0, 0)])
def test_long_or_unknown_plans_are_not_brief(add_kernel: KernelSource, flops: int, moved: int) -> None:
    step = Step(add_kernel, (X, Y, 0), TaskRange(2), flops=flops, bytes=moved)
    plan = Plan([step], 0, [], [ParameterSpec("x", "int64", (16,))], [TensorSpec("int64", (16,))])
    assert not PlanTables(plan, {add_kernel: 0}, [], 2).brief


def affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.mark.skipif(len(affinity()) < 2, reason="one CPU, or a system that does not say")
@pytest.mark.parametrize(("sleepers", "more", "kept_off"), [(1, 0, True), (0, 0, False), (1, 1, False)])
def test_woken_workers_keep_off_the_callers_cpu_where_every_cpu_has_a_thread(
    add_kernel: KernelSource, empty_pool: threads.ThreadPool, sleepers: int, more: int, kept_off: bool
) -> None:
    """Not where they are awake, nor where there are more threads than CPUs."""
    words, cpus = empty_pool.block, affinity()
    ended = threading.Event()
    worker = threading.Thread(target=ended.wait)
    worker.start()
    try:
        empty_pool.numbers[1 : len(cpus) + more] = worker.native_id
        words[Pool.CPUS], words[Pool.WORKERS], words[Pool.SLEEPERS] = len(cpus), len(cpus) + more - 1, sleepers
        x = np.arange(128)
        executable = Executable(sum_plan(add_kernel, [8, 9]), len(cpus) + more)
        np.testing.assert_array_equal(executable.run([x])[0], expected_sum(x, [8, 9]))
        avoided = int(words[Pool.AVOIDED])
        assert (avoided in cpus) if kept_off else avoided == -1
        assert os.sched_getaffinity(worker.native_id or 0) == cpus - {avoided}
    finally:
        ended.set()
        worker.join()
    assert affinity() == cpus


@pytest.mark.skipif(len(affinity()) < 2, reason="one CPU, or a system that does not say")
def test_workers_ran_where_the_caller_no_longer_may() -> None:
    body = """
import os, time
from mgx_numba.runtime.cpu.spmd import Pool
from mgx_numba.runtime.cpu.threads import pool

cpus = sorted(os.sched_getaffinity(0))

def settled(allowed):
    os.sched_setaffinity(0, allowed)
    time.sleep(0.003)  # the caller's is asked for once in a millisecond
    ok = check()
    workers = [os.sched_getaffinity(worker.native_id) for worker in pool().workers]
    return ok and len(workers) == 2 and all(worker <= set(allowed) for worker in workers)

fewer = settled(cpus[:1]), pool().block[Pool.SPINS]
more = settled(cpus), settled(cpus[1:2]), settled(cpus), int(pool().block[Pool.CPUS]) == len(cpus)
widest = max(len(os.sched_getaffinity(worker.native_id)) for worker in pool().workers)
print(*fewer, *more, widest >= len(cpus) - 1)
"""
    assert run_program(body) == "True 0 True True True True True"


@pytest.mark.skipif(len(affinity()) < 2, reason="one CPU, or a system that does not say")
def test_threads_that_may_run_on_one_cpu_only_run_alone() -> None:
    """The first of two tiles would wait for the second, which a worker on the same CPU could run."""
    body = """
import os, time
from mgx_numba.codegen.launch import TaskRange
from tests.runtime.test_executor import MEET, X, Y

cpu = min(os.sched_getaffinity(0))
steps = [Step(MEET, (X, Y), TaskRange(2))]
meeting = Executable(Plan(steps, 0, [], [ParameterSpec("counter", "int64", (1,))], [TensorSpec("int64", (16,))]), 2)
os.sched_setaffinity(0, {cpu})
time.sleep(0.003)
print([bool(meeting.run([np.zeros(1, np.int64)])[0][0]) for _ in range(5)].count(True))
"""
    assert run_program(body) == "0"


@pytest.mark.skipif(len(affinity()) < 2, reason="one CPU, or a system that does not say")
def test_workers_follow_each_caller_to_its_cpu() -> None:
    """Two Python threads on CPUs of their own run one executable at once."""
    body = """
import os, time

def run(cpu, seen):
    os.sched_setaffinity(0, {cpu})
    seen.append(all(check() for _ in range(20)) and os.sched_getaffinity(0) == {cpu})

seen = []
callers = [threading.Thread(target=run, args=(cpu, seen)) for cpu in sorted(os.sched_getaffinity(0))[:2]]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
time.sleep(0.003)
print(seen, check())
"""
    assert run_program(body) == "[True, True] True"


@pytest.mark.skipif(not affinity(), reason="a system that does not say")
def test_a_caller_whose_workers_the_system_refused_may_run_where_it_could() -> None:
    """A worker that does not exist has no number, which to the system means the caller."""
    body = """
import os, threading, time
import numpy as np
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.cpu.threads import pool
from tests.runtime.conftest import ADD
from tests.runtime.test_executor import sum_plan

allowed = os.sched_getaffinity
before = allowed(0)
told = set(range(max(before) + 3))
os.sched_getaffinity = lambda process: told if process == 0 else allowed(process)
pool().reset()
start = threading.Thread.start

def start_one(thread):
    if pool().workers:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_one
executable = Executable(sum_plan(cpu_kernel("add_kernel", ADD), [8, 9]), len(told))
for _ in range(5):
    executable.run([np.zeros(128, np.int64)])
    time.sleep(0.05)  # until the worker sleeps
print(len(pool().workers), allowed(0) == before)
"""
    assert said(body) == "1 True"
