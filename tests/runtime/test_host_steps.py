"""Python functions between kernels: values whose shape is known only at run time, errors, views."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.errors import ShapeError
from mgx_numba.runtime.cpu.executor import Executable, View
from mgx_numba.runtime.plan import FallbackStep, ParameterSpec, Plan, Pointer, Region, Step, TensorSpec, TensorView

Arrays = list[np.ndarray]
X = TensorView(Pointer(Region.PARAMETER, 0), "int64", (8,), (1,))
ARENA = TensorView(Pointer(Region.ARENA, 0, 64), "int64", (8,), (1,))
OUTPUT = TensorView(Pointer(Region.OUTPUT, 0), "int64", (8,), (1,))
HOST = TensorView(Pointer(Region.HOST, 0), "int64", (), ())


def plan_of(*steps: Step | FallbackStep, lens: tuple[int, ...] | None = (8,)) -> Plan:
    return Plan(list(steps), 256, [], [ParameterSpec("x", "int64", (8,))], [TensorSpec("int64", lens)])


def test_host_step_between_kernels(add_kernel: KernelSource) -> None:
    plan = plan_of(
        Step(add_kernel, (X.pointer, ARENA.pointer, 1), TaskRange(1)),
        FallbackStep(lambda inputs: [inputs[0] * 10], (ARENA,), (ARENA,)),
        Step(add_kernel, (ARENA.pointer, OUTPUT.pointer, 5), TaskRange(1)),
    )
    executable = Executable(plan, 2)
    for start in range(3):
        x = np.arange(start, start + 8)
        np.testing.assert_array_equal(executable.run([x])[0], (x + 1) * 10 + 5)


def test_host_value_has_the_shape_of_the_run() -> None:
    plan = plan_of(
        FallbackStep(lambda inputs: list(np.nonzero(inputs[0])), (X,), (HOST,)),
        FallbackStep(lambda inputs: [inputs[0] + 100], (HOST,), (OUTPUT,)),
        lens=None,
    )
    executable = Executable(plan)
    np.testing.assert_array_equal(executable.run([np.array([0, 1, 0, 1, 0, 0, 0, 1])])[0], [101, 103, 107])
    assert executable.run([np.zeros(8, np.int64)])[0].shape == (0,)


def test_kernel_reads_a_host_value(add_kernel: KernelSource) -> None:
    plan = plan_of(
        FallbackStep(lambda inputs: [np.concatenate([inputs[0], inputs[0]])], (X,), (HOST,)),
        Step(add_kernel, (Pointer(Region.HOST, 0, 32), OUTPUT.pointer, 0), TaskRange(1)),
    )
    x = np.arange(8)
    np.testing.assert_array_equal(Executable(plan).run([x])[0], [4, 5, 6, 7, 0, 1, 2, 3])


def test_kept_results_are_not_views_of_reused_memory() -> None:
    """A function that returns its input must not hand out the arena."""
    plan = plan_of(
        FallbackStep(lambda inputs: [inputs[0] + 1], (X,), (ARENA,)),
        FallbackStep(lambda inputs: [inputs[0].reshape(2, 4).T], (ARENA,), (OUTPUT,)),
        lens=None,
    )
    executable = Executable(plan)
    first = executable.run([np.zeros(8, np.int64)])[0]
    executable.run([np.ones(8, np.int64)])
    assert first.shape == (4, 2) and first.flags.c_contiguous and (first == 1).all()


def test_scalar_results_keep_rank_zero() -> None:
    plan = plan_of(FallbackStep(lambda inputs: [inputs[0].sum()], (X,), (OUTPUT,)), lens=None)
    assert Executable(plan).run([np.arange(8)])[0].shape == ()


def test_error_passes_through_and_the_context_is_used_again() -> None:
    fail = [True]

    def function(inputs: Arrays) -> Arrays:
        if fail:
            raise KeyError("from the step")
        return [inputs[0] * 2]

    executable = Executable(plan_of(FallbackStep(function, (X,), (OUTPUT,))))
    for _ in range(3):
        with pytest.raises(KeyError, match="from the step"):
            executable.run([np.arange(8)])
    fail.clear()
    np.testing.assert_array_equal(executable.run([np.arange(8)])[0], np.arange(8) * 2)
    assert len(executable.idle) == 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda inputs: [], "returned 0 arrays, expected 1"),
        (lambda inputs: [inputs[0][:4]], "shape \\(4,\\), expected \\(8,\\)"),
        (lambda inputs: [inputs[0].astype(np.float32)], "float32, expected int64"),
    ],
)
def test_result_that_differs_from_the_declaration(function: Callable[[Arrays], Arrays], says: str) -> None:
    executable = Executable(plan_of(FallbackStep(function, (X,), (OUTPUT,), label="odd")))
    with pytest.raises(ShapeError, match="fallback step odd: returned .*" + says.removeprefix("returned ")):
        executable.run([np.arange(8)])


def test_inputs_are_read_only() -> None:
    def function(inputs: Arrays) -> Arrays:
        inputs[0][0] = 1
        return inputs

    with pytest.raises(ValueError, match="read-only"):
        Executable(plan_of(FallbackStep(function, (X,), (OUTPUT,)))).run([np.arange(8)])


def test_views_follow_strides_and_storage_types() -> None:
    constant = np.arange(12).astype(ml_dtypes.bfloat16)
    view = TensorView(Pointer(Region.CONSTANT, 0, 4), "bfloat16", (2, 3), (1, 3))
    target = TensorView(Pointer(Region.OUTPUT, 0), "bfloat16", (2, 3), (3, 1))
    plan = Plan(
        [FallbackStep(lambda inputs: inputs, (view,), (target,))],
        0,
        [constant],
        [],
        [TensorSpec("bfloat16", (2, 3))],
    )
    np.testing.assert_array_equal(Executable(plan).run([])[0].astype(int), [[2, 5, 8], [3, 6, 9]])


def test_value_read_before_it_is_made_is_an_error() -> None:
    plan = plan_of(FallbackStep(lambda inputs: inputs, (HOST,), (OUTPUT,)), lens=None)
    with pytest.raises(ShapeError, match="HOST 0"):
        Executable(plan).run([np.arange(8)])


def test_tracing_covers_host_steps() -> None:
    plan = plan_of(FallbackStep(lambda inputs: [inputs[0] + 1], (X,), (HOST,)), lens=None)
    seen: list[list[int]] = []

    def note(index: int, step: Step | FallbackStep, seconds: float, view: View) -> None:
        seen.append(view(HOST).tolist())

    Executable(plan).run_traced([np.zeros(8, np.int64)], note)
    assert seen == [[1] * 8]


def test_a_view_of_a_host_value_is_not_copied() -> None:
    """A reshape of what a fallback step made took as long as a copy: 41 MB in a Mask R-CNN."""
    rows, transposed = (TensorView(Pointer(Region.HOST, k), "int64", (), ()) for k in (1, 2))
    seen: Arrays = []

    def keep(inputs: Arrays) -> Arrays:
        seen.extend(inputs)
        return [inputs[0].sum(keepdims=True)]

    plan = plan_of(
        FallbackStep(lambda inputs: [inputs[0] + 1], (X,), (HOST,)),
        FallbackStep(lambda inputs: [inputs[0].reshape(2, 4)], (HOST,), (rows,)),
        FallbackStep(lambda inputs: [inputs[0].T], (rows,), (transposed,)),
        FallbackStep(keep, (rows, HOST, transposed), (OUTPUT,)),
        lens=None,
    )
    executable = Executable(plan)
    for start in range(2):
        result = executable.run([np.arange(start, start + 8)])[0]
        assert result == [8 * start + 36] and result.flags.owndata
    assert np.shares_memory(seen[0], seen[1]) and not np.shares_memory(seen[0], seen[2])
    assert not np.shares_memory(seen[0], seen[3])
    np.testing.assert_array_equal(seen[2], np.arange(1, 9).reshape(2, 4).T)
