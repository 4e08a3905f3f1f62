"""The native entry of a plan: accepted inputs, fallback to the general path, and no retained references."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.runtime import memory
from mgx_numba.runtime.cpu import native_call
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.runtime.memory import address_of
from mgx_numba.runtime.plan import FallbackStep, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec

from ..running import at_once, said

pytestmark = pytest.mark.skipif(
    not native_call.recognises_objects(), reason="an interpreter or NumPy with other objects"
)
LENS = (2, 3, 8)


class Result(np.ndarray):
    """The requested type of outputs."""


def plan_of(kernel: KernelSource, lens: tuple[int, ...] = LENS, outputs: int = 2) -> Plan:
    """Output k is x + y's place + k; y is only checked."""
    tiles = int(np.prod(lens)) // 8
    x = Pointer(Region.PARAMETER, 0)
    steps: list[Step | FallbackStep] = [
        Step(kernel, (x, Pointer(Region.OUTPUT, k), k), TaskRange(tiles)) for k in range(outputs)
    ]
    parameters = [ParameterSpec("x", "int64", lens), ParameterSpec("y", "float32", (5,))]
    return Plan(steps, 0, [], parameters, [TensorSpec("int64", lens) for _ in range(outputs)])


def inputs_of(lens: tuple[int, ...] = LENS) -> dict[str, np.ndarray]:
    return {"x": np.arange(int(np.prod(lens))).reshape(lens), "y": np.zeros(5, np.float32)}


def entry_of(plan: Plan, threads: int = 1) -> tuple[Executable, Callable[[Any], Any]]:
    """The entry serves its first call: it has worker threads and a context."""
    executable = Executable(plan, threads)
    entry = executable.direct(Result)
    assert entry is not None
    return executable, entry


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outputs", [0, 1, 3])
@pytest.mark.parametrize("lens", [LENS, (16,), (0, 8), (2, 1, 4, 1, 8)])
def test_outputs_are_new_aligned_arrays(
    add_kernel: KernelSource, lens: tuple[int, ...], outputs: int, threads: int
) -> None:
    _, entry = entry_of(plan_of(add_kernel, lens, outputs), threads)
    given = inputs_of(lens)
    first, second = entry(given), entry({**given, "other": 3})
    for k, (one, two) in enumerate(zip(first, second, strict=True)):
        np.testing.assert_array_equal(one, given["x"] + k)
        np.testing.assert_array_equal(two, given["x"] + k)
        assert type(one) is Result and one.flags.c_contiguous and one.flags.writeable and one.flags.aligned
        assert address_of(one) % 64 == 0
        assert not np.shares_memory(one, two) and not np.shares_memory(one, given["x"])
    assert len(first) == outputs


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


TAKEN: dict[str, Callable[[np.ndarray], Any]] = {
    "result type": lambda x: x.view(Result),
    "read only": read_only,
    "part of another": lambda x: np.concatenate([x, x])[2:],
    "made by the user": lambda x: np.frombuffer(x.tobytes(), np.int64).reshape(LENS),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_contiguous_arrays_are_taken_in_place(add_kernel: KernelSource, kind: str) -> None:
    _, entry = entry_of(plan_of(add_kernel))
    given = inputs_of()
    expected = given["x"].copy()
    (first, _) = entry({**given, "x": TAKEN[kind](given["x"])})
    np.testing.assert_array_equal(first, expected)


LEFT: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "nothing": lambda given: None,
    "a list": lambda given: list(given.values()),
    "another mapping": lambda given: type("Sub", (dict,), {})(given),
    "no inputs": lambda given: {},
    "the last missing": lambda given: {"x": given["x"]},
    "a wrong length": lambda given: {**given, "x": given["x"][:, :2].copy()},
    "another rank": lambda given: {**given, "x": given["x"][0].copy()},
    "other lengths, as many": lambda given: {**given, "x": given["x"].reshape(3, 2, 8)},
    "another type": lambda given: {**given, "y": given["y"].astype(np.float64)},
    "another type of the same width": lambda given: {**given, "x": given["x"].view(np.uint64)},
    "foreign byte order": lambda given: {**given, "y": given["y"].astype(">f4")},
    "strided": lambda given: {**given, "x": np.repeat(given["x"], 2, axis=2)[..., ::2]},
    "reversed": lambda given: {**given, "x": given["x"][..., ::-1]},
    "broadcast": lambda given: {**given, "y": np.broadcast_to(np.float32(1), (5,))},
    "in Fortran's order": lambda given: {**given, "x": np.asfortranarray(given["x"])},
    "another subclass": lambda given: {**given, "x": given["x"].view(np.recarray)},
    "no array": lambda given: {**given, "x": given["x"].tolist()},
    "a scalar": lambda given: {**given, "y": 1.0},
    "keys that are no names": lambda given: {k.encode(): v for k, v in given.items()},
}


@pytest.mark.parametrize("kind", LEFT)
def test_anything_else_is_left_alone(add_kernel: KernelSource, kind: str) -> None:
    executable, entry = entry_of(plan_of(add_kernel))
    given = inputs_of()
    wrong = LEFT[kind](given)
    values = [*given.values(), *(wrong.values() if isinstance(wrong, dict) else ())]
    before = [sys.getrefcount(value) for value in values]
    for _ in range(3):
        assert entry(wrong) is None
    assert [sys.getrefcount(value) for value in values] == before
    assert len(executable.idle) == 1
    assert entry(given) is not None


def test_keys_that_fail_to_compare_raise_nothing(add_kernel: KernelSource) -> None:
    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

    _, entry = entry_of(plan_of(add_kernel))
    given = inputs_of()
    assert entry({Key("x"): given["x"], "y": given["y"]}) is None


def test_calls_keep_no_reference(add_kernel: KernelSource) -> None:
    executable, entry = entry_of(plan_of(add_kernel))
    given = inputs_of()
    kept = [*given.values(), *given, np.dtype(np.int64), np.dtype(np.uint8), Result, executable.idle[0], given]
    entry(given)
    before = [sys.getrefcount(value) for value in kept]
    for _ in range(100):
        entry(given)
    after = [sys.getrefcount(value) for value in kept]
    assert after == before
    results = entry(given)
    counts = [sys.getrefcount(results)]
    last = results.pop()
    counts += [sys.getrefcount(last), sys.getrefcount(last.base)]
    assert counts == [2, 2, 2]


def test_memory_of_large_results_is_used_again_if_nothing_refers_to_it(add_kernel: KernelSource) -> None:
    lens = (native_call.Call.LARGE // 8,)
    _, entry = entry_of(plan_of(add_kernel, lens, 1))
    given = inputs_of(lens)

    def run(add: int) -> np.ndarray:
        (result,) = entry({**given, "x": given["x"] + add})
        np.testing.assert_array_equal(result[:: 1 << 18], given["x"][:: 1 << 18] + add)
        return result

    used = {address_of(run(k)) for k in range(4)}
    assert len(used) == 1
    result = run(4)
    for k in range(4):  # the caller drops a result after the next call
        result = run(5 + k)
        used.add(address_of(result))
    assert len(used) == 2
    view = memoryview(result)[1:]
    del result
    held = [run(20 + k) for k in range(4)]
    for k, array in enumerate(held):
        np.testing.assert_array_equal(array, given["x"] + 20 + k)
    np.testing.assert_array_equal(view, given["x"][1:] + 8)
    assert len({address_of(array) for array in (*held, np.asarray(view))}) == 5


def test_memory_of_large_results_is_freed_with_the_entry(add_kernel: KernelSource) -> None:
    lens = (native_call.Call.LARGE // 8,)
    _, entry = entry_of(plan_of(add_kernel, lens, 1))
    (result,) = entry(inputs_of(lens))
    memory = weakref.ref(result.base)
    del result
    assert memory() is not None
    del entry
    assert memory() is None


def test_outputs_without_memory_leave_nothing_behind(add_kernel: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: None)  # as on a system that does not say
    plan = plan_of(add_kernel)
    plan.outputs[1] = TensorSpec("int64", (1 << 58,))
    executable = Executable(plan, 1)
    executable.return_context(executable.take_context())
    entry, given = executable.direct(Result), inputs_of()
    assert entry is not None
    before = sys.getrefcount(given["x"]), sys.getrefcount(np.dtype(np.int64))
    for _ in range(3):
        assert entry(given) is None
    assert (sys.getrefcount(given["x"]), sys.getrefcount(np.dtype(np.int64))) == before
    assert len(executable.idle) == 1


@pytest.mark.parametrize(("idle", "running"), [(1, 0), (8, 4)])  # the latter's list has room to shrink
def test_python_without_memory_leaves_no_error_and_loses_no_context(
    add_kernel: KernelSource, idle: int, running: int
) -> None:
    failing = pytest.importorskip("_testcapi")
    executable, entry = entry_of(plan_of(add_kernel))
    given = inputs_of()
    for place in range(12):
        contexts = [executable.take_context() for _ in range(idle + running)]
        for context in contexts:
            executable.return_context(context)
        taken = [executable.take_context() for _ in range(running)]
        results, caught = None, None
        failing.set_nomemory(place, place + 1)
        try:
            results = entry(given)
        except BaseException as error:
            caught = error
        failing.remove_mem_hooks()
        assert caught is None
        if results is not None:
            np.testing.assert_array_equal(results[1], given["x"] + 1)
        assert len(set(executable.idle)) == len(executable.idle) in (idle, idle - 1)
        assert len(executable.contexts) == len(executable.idle)
        for context in taken:
            executable.return_context(context)


def test_entry_outlives_its_executable(add_kernel: KernelSource) -> None:
    executable, entry = entry_of(plan_of(add_kernel))
    del executable
    given = inputs_of()
    np.testing.assert_array_equal(entry(given)[1], given["x"] + 1)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_eight_python_threads_share_contexts(add_kernel: KernelSource, threads: int, limit: int) -> None:
    executable = Executable(plan_of(add_kernel, (64, 8), 2), threads)
    executable.idle_limit[0] = limit
    entry = executable.direct(Result)
    assert entry is not None

    def caller(number: int) -> None:
        for i in range(500):
            given = {"x": np.full((64, 8), number * 1000 + i), "y": np.zeros(5, np.float32)}
            results = entry(given) or executable.run(list(given.values()))
            assert all(np.array_equal(result, given["x"] + k) for k, result in enumerate(results))

    at_once(caller, range(8))
    assert sorted(executable.contexts) == sorted(executable.idle) and 1 <= len(executable.idle) <= limit


def test_host_steps_have_no_entry(add_kernel: KernelSource) -> None:
    plan = plan_of(add_kernel)
    plan.steps.append(FallbackStep(lambda _: [], (), ()))
    assert Executable(plan, 1).direct(Result) is None


def test_an_unknown_interpreter_has_no_entry(add_kernel: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "_numpy_functions", lambda: None)
    assert Executable(plan_of(add_kernel), 1).direct(Result) is None


PRELUDE = """
import os, threading, time, warnings
import numpy as np
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.runtime.cpu.executor import Executable
from tests.runtime.conftest import ADD
from tests.runtime.test_direct import entry_of, inputs_of, plan_of

warnings.simplefilter("ignore")
given = inputs_of()
executable, entry = entry_of(plan_of(cpu_kernel("add_kernel", ADD)), 2)

def run():
    results = entry(given) or executable.run(list(given.values()))
    return all((result == given["x"] + k).all() for k, result in enumerate(results))

def run_on():
    while True:
        run()

for _ in range(3):
    threading.Thread(target=run_on, daemon=True).start()
time.sleep(0.05)
"""


def run_program(body: str) -> str:
    return said(PRELUDE + body)


def test_interpreter_exits_while_threads_are_in_the_entry() -> None:
    assert run_program("import atexit\natexit.register(lambda: print(run()))") == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_child_of_a_fork_runs() -> None:
    body = """
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if all(run() for _ in range(20)) else 1)
    assert os.waitpid(child, 0)[1] == 0
print(all(run() for _ in range(20)))
"""
    assert run_program(body) == "True"


def test_a_numpy_of_another_abi_has_no_entry(add_kernel: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function table may differ; NumPy 2 up to 2.5 at least share one ABI."""
    monkeypatch.setattr(native_call, "_NUMPY_ABI", 0x03000000)
    assert not native_call.recognises_objects() and Executable(plan_of(add_kernel), 1).direct(Result) is None
