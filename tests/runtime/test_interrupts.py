"""Interrupts (Ctrl-C) during a run, a compilation or an import leave everything consistent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..running import said

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith(("linux", "darwin")), reason="timers, and a clock that kernels know"
)

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.plan import FallbackStep, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec, TensorView

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it

class Ended(Exception):
    pass

def interrupt_after(seconds, handler=signal.default_int_handler):
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)

def end(number, frame):
    raise Ended(f"signal {number}")

X, Y = Pointer(Region.PARAMETER, 0), Pointer(Region.OUTPUT, 0)
SLOW = cpu_kernel("slow_kernel", '''
def kernel(args, begin, end):
    x, y = words_at(args, 0), words_at(args, 1)
    pause = words_at(args, 2)
    for i in range(begin, end):
        if pause[0] > 0:  # sleeping for no time takes some, too
            sleep_microseconds(pause[0])
        atomic_add(y, i, x[i])
''')
TASKS = 300

def slow_plan(steps, tasks, grain=1, **options):
    start = Step(cpu_kernel("clear_kernel", '''
def kernel(args, begin, end):
    y = words_at(args, 0)
    for i in range(begin, end):
        y[i] = 0
'''), (Y,), TaskRange(TASKS, TASKS), bytes=8 * TASKS)
    step = Step(SLOW, (X, Y, Pointer(Region.PARAMETER, 1)), TaskRange(tasks, grain), **options)
    parameters = [ParameterSpec("x", "int64", (TASKS,)), ParameterSpec("pause", "int64", (1,))]
    return Plan([start] + [step] * steps, 0, [], parameters, [TensorSpec("int64", (TASKS,))])
"""


def run_script(body: str, **environment: str) -> list[str]:
    return said(PRELUDE + body, **environment).split()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_run_was_interrupted_at_its_end_only(threads: int) -> None:
    """One long step; a chain of steps on one thread; steps of unknown cost. Each is entered in three ways."""
    body = f"""
quick, slow = ({{"x": np.arange(TASKS), "pause": np.array([pause])}} for pause in (0, 10_000))
references = sys.getrefcount(slow["x"])

def check(executable, call):
    expected = executable.run(list(quick.values()))[0]
    for handler, error in ((signal.default_int_handler, KeyboardInterrupt), (end, Ended)):
        interrupt_after(0.06, handler)
        start = time.perf_counter()
        try:
            call(slow)
        except error:
            seen.append(time.perf_counter() - start)
        assert sorted(executable.contexts) == sorted(executable.idle) and len(executable.idle) == 1
        for _ in range(20):
            assert (call(quick)[0] == expected).all() and (executable.run(list(quick.values()))[0] == expected).all()

seen = []
for plan in slow_plan(1, TASKS, flops=10**10), slow_plan(TASKS, 1, bytes=10**8), slow_plan(TASKS // 4, 4):
    executable = Executable(plan, {threads})
    check(executable, executable.direct(np.ndarray))
    check(executable, lambda inputs: executable.run(list(inputs.values())))
    check(executable, lambda inputs: executable.run_traced(list(inputs.values()), lambda *event: None))
print(len(seen), max(seen) < 0.8, sys.getrefcount(slow["x"]) == references)
"""
    assert run_script(body) == ["18", "True", "True"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_raises_nothing_runs_during_a_long_call(threads: int) -> None:
    """The call goes on to its end, and its result is whole."""
    body = f"""
executable = Executable(slow_plan(1, TASKS, flops=10**10), {threads})
noted = []
interrupt_after(0.05, lambda *_: noted.append(time.perf_counter()))
x = np.arange(TASKS)
(y,) = executable.run([x, np.array([2000])])
print(len(noted), time.perf_counter() - noted[0] > 0.1, (y == x).all())
"""
    assert run_script(body) == ["1", "True", "True"]


def test_only_the_main_thread_is_interrupted() -> None:
    body = """
executable = Executable(slow_plan(1, TASKS, flops=10**10), 2)
x, results = np.arange(TASKS), []
other = threading.Thread(target=lambda: results.append(executable.run([x, np.array([1000])])[0]))
other.start()
interrupt_after(0.05)
try:
    while other.is_alive():
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted", not results)
other.join()
print((results[0] == x).all())
"""
    assert run_script(body) == ["interrupted", "True", "True"]


def test_a_long_run_between_host_steps_was_interrupted_at_its_end_only() -> None:
    body = """
plan = slow_plan(1, TASKS, flops=10**10)
view = TensorView(Y, "int64", (TASKS,), (1,))
plan.steps.append(FallbackStep(lambda arrays: [arrays[0] + 1], (view,), (view,)))
executable = Executable(plan, 2)
x = np.arange(TASKS)
interrupt_after(0.1)
start = time.perf_counter()
try:
    executable.run([x, np.array([10_000])])
except KeyboardInterrupt:
    print(time.perf_counter() - start < 0.9)
print((executable.run([x, np.array([0])])[0] == x + 1).all(), len(executable.idle))
"""
    assert run_script(body) == ["True", "True", "1"]


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.6])
def test_numba_could_not_be_imported_again(seconds: float, tmp_path: Path) -> None:
    """Nothing is in the object store, so the first call imports Numba."""
    body = f"""
interrupt_after({seconds})
start = time.perf_counter()
late = 0.0
try:
    Executable(slow_plan(1, 8), 1)
except KeyboardInterrupt:
    late = time.perf_counter() - start - {seconds}
signal.setitimer(signal.ITIMER_REAL, 0)
x = np.arange(TASKS)
(y,) = Executable(slow_plan(1, 8), 1).run([x, np.array([0])])
print(late < 1.0, (y[:8] == x[:8]).all() and not y[8:].any())
"""
    assert run_script(body, MGX_CACHE_DIR=str(tmp_path)) == ["True", "True"]


def test_workers_compiled_on_after_an_interrupt(tmp_path: Path) -> None:
    """Worker processes end at once: the kernels that they were to make are not wanted any more."""
    body = """
from mgx_numba.codegen.workers import batch
sources = [cpu_kernel(f"k{n}_kernel", f"def kernel(args, begin, end):\\n    args[0] = {n}\\n") for n in range(400)]
begun = []
start_worker = batch.start_worker
batch.start_worker = lambda *given: begun.append(start_worker(*given)) or begun[-1]

def interrupt():
    while not begun:
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    batch.compile_objects(sources, workers=2)
except KeyboardInterrupt:
    end = time.perf_counter() + 10
    while any(worker.poll() is None for worker in begun) and time.perf_counter() < end:
        time.sleep(0.01)
    print(end - time.perf_counter() > 8, len(batch.compile_objects(sources[:2], workers=0)))
"""
    assert run_script(body, MGX_CACHE_DIR=str(tmp_path)) == ["True", "2"]


def test_an_interrupt_ends_only_the_waiting() -> None:
    body = """
from mgx_numba.interrupts import unbroken

done = []

def work(seconds):
    time.sleep(seconds)
    done.append(threading.current_thread())
    return seconds

interrupt_after(0.05)
try:
    unbroken(work, 0.3)
except KeyboardInterrupt:
    print(len(done))
time.sleep(0.5)
print(len(done), unbroken(work, 0.01))
try:
    unbroken(int, "x")
except ValueError:
    print("raised")
"""
    assert run_script(body) == ["0", "1", "0.01", "raised"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_of_short_iterations_is_interrupted(threads: int) -> None:
    """Iterations without end, of which none takes as long as from one look for signals to the next."""
    body = f"""
from mgx_numba.runtime.plan import Jump
step = Step(cpu_kernel("again_kernel", '''
def kernel(args, begin, end):
    words_at(args, 0)[0] = 1
'''), (Pointer(Region.ARENA, 0, 0),), TaskRange(1), bytes=1)
executable = Executable(Plan([step], 64, [], [], [], jumps=(Jump(0, 1, 0, True),)), {threads})
direct = executable.direct(np.ndarray)
for call in lambda: executable.run([]), lambda: direct({{}}):
    interrupt_after(0.06)
    try:
        call()
    except KeyboardInterrupt:
        print(sorted(executable.contexts) == sorted(executable.idle), len(executable.idle))
"""
    assert run_script(body) == ["True", "1"] * 2


def test_a_handler_waits_for_the_end_of_brief_work() -> None:
    body = """
from mgx_numba.interrupts import handlers_later

done = []
for end_with in (None, ValueError("own")):
    try:
        with handlers_later():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("work")
            if end_with is not None:
                raise end_with
    except KeyboardInterrupt as error:
        done.append(repr(error.__context__))
print(*done, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert run_script(body) == ["work", "None", "work", "ValueError('own')", "True"]
