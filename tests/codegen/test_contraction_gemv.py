"""Products of a few rows: cases that the tests of all product solvers omit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction import gemv_int16, int16_weights, panels
from mgx_numba.codegen.cpu.contraction.gemv import MOST_ROWS, GemvColumns, GemvPacked, GemvRows
from mgx_numba.codegen.cpu.contraction.gemv_int16 import GemvInt16
from mgx_numba.codegen.cpu.contraction.int16_weights import BLOCK
from mgx_numba.codegen.cpu.contraction.solver import UnsuitedWeights
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.contraction.tuning_candidates import SOLVERS as CPU_SOLVERS
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.request import Candidate, Request
from mgx_numba.core.types import Type
from mgx_numba.parallel import on_threads

from .contracting import apply_full_epilogue, epilogue_of, full_epilogue, full_epilogue_arrays, gemm_problem, run_plan

SOLVER = GemvPacked()
SOLVERS = {"gemv": (SOLVER, 1e-4), "gemv_int16": (GemvInt16(), 1e-2)}


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> tuple[GemvPacked, float]:
    """A solver and the absolute error that sums of some hundred products of normal numbers may have."""
    return SOLVERS[request.param]


def pair(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


@pytest.mark.parametrize("m", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize("n", [1, 31, 33, 64, 97, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_panels_that_do_not_fill_groups(solver: tuple[GemvPacked, float], m: int, n: int, threads: int) -> None:
    made, atol = solver
    for k in (1, 5, 2 * BLOCK + 1):
        a, b = pair(m, n, k)
        problem = gemm_problem(a, b, True)
        e = full_epilogue_arrays(np.random.default_rng(n), (m,), n, "float32")
        out = np.full((m, n), np.nan, np.float32)
        arrays = {"x": a, "w": made.pack_weights(problem, b), "out": out, **e}
        run_plan(made.plan(problem, full_epilogue("float32"), (), threads), arrays)
        np.testing.assert_allclose(out, apply_full_epilogue(a.astype(float) @ b, e), rtol=1e-4, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 2, 4, 5, 11])
def test_weights_read_by_rows_where_they_lie(m: int, dtype: str) -> None:
    made = GemvRows()
    for n, k in ((1, 1), (33, 7), (64, 64), (70, 131)):
        a, b = (v.astype(dtype) for v in pair(m, n, k))
        rows = np.full((n, k + 3), np.nan, dtype)
        rows[:, :k] = b.T
        strides = replace(gemm_problem(a, b, False), b_strides=(1, k + 3))
        assert made.refusal(strides) is None
        e = full_epilogue_arrays(np.random.default_rng(n), (m,), n, dtype)
        out = np.full((m, n), np.nan, dtype)
        run_plan(made.plan(strides, full_epilogue(dtype), (), 3), {"x": a, "w": rows, "out": out, **e})
        np.testing.assert_allclose(out, apply_full_epilogue(a.astype(float) @ b, e), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_row_of_a_product_of_two_inputs_reads_wide_rows_of_the_second(dtype: str) -> None:
    """The tile of a matrix product took five times as long for 768x3072. Nothing outside the matrix is read."""
    made = GemvColumns()
    for n, k in ((1, 1), (33, 7), (64, 64), (70, 131), (519, 6)):
        a, b = (v.astype(dtype) for v in pair(1, n, k))
        wide, x = np.full((k, n + 3), np.nan, dtype), np.full((1, 2 * k), np.nan, dtype)
        wide[:, :n], x[:, ::2] = b, a
        problem = gemm_problem(x[:, ::2], wide[:, :n], False)
        assert select(problem).name == "gemv_columns"
        e = full_epilogue_arrays(np.random.default_rng(n), (1,), n, dtype)
        out = np.full((1, n), np.nan, dtype)
        run_plan(made.plan(problem, full_epilogue(dtype), (), 3), {"x": x[:, ::2], "w": wide[:, :n], "out": out, **e})
        np.testing.assert_allclose(out, apply_full_epilogue(a.astype(float) @ b, e), rtol=1e-4, atol=1e-4)


def test_operands_apart_in_memory(solver: tuple[GemvPacked, float]) -> None:
    made, atol = solver
    a, b = pair(3, 70, 21)
    wide = np.full((3, 90), 7.25, np.float32)
    spread = np.full((21, 6), np.nan, np.float32)
    spread[:, ::2] = a.T
    x, out = spread.T[::2], wide[:, 9:79]
    residual = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    problem = gemm_problem(x, b, True, out)
    epilogue = epilogue_of(lambda s, acc, e: s.add(acc, e), "full")
    arrays = {"x": x, "w": made.pack_weights(problem, b), "out": out, "e0": residual}
    run_plan(made.plan(problem, epilogue, ((200,),)), arrays)
    np.testing.assert_allclose(out, a @ b + residual[:, :70], rtol=1e-4, atol=atol)
    assert np.all(wide[:, :9] == 7.25) and np.all(wide[:, 79:] == 7.25)


def test_result_of_another_dtype() -> None:
    a, b = pair(1, 50, 9)
    problem = gemm_problem(a, b, True)
    out = np.zeros((1, 50), np.bool_)
    epilogue = epilogue_of(lambda s, acc: s.gt(acc, s.const(0, Type.float_type)))
    run_plan(SOLVER.plan(problem, epilogue), {"x": a, "w": SOLVER.pack_weights(problem, b), "out": out})
    np.testing.assert_array_equal(out, a @ b > 0)


def test_not_a_number_stays_in_its_row_and_column() -> None:
    a, b = pair(4, 100, 33)
    a[3, 5], a[1, 0] = np.nan, np.inf
    b[7, 99] = np.nan
    problem = gemm_problem(a, b, True)
    out = np.zeros((4, 100), np.float32)
    run_plan(SOLVER.plan(problem), {"x": a, "w": SOLVER.pack_weights(problem, b), "out": out})
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_it_is_chosen_for_few_rows_and_has_no_blocking_to_tune() -> None:
    assert select(GemmProblem(2, 300, 200), 2).name == "gemv"
    assert select(GemmProblem(MOST_ROWS + 1, 300, 200), 2).name == "gemm"
    assert select(GemmProblem(2, 300, 0), 2).name == "gemm"
    request = Request(GemmProblem(2, 300, 200), Epilogue(), (), 2, False)
    assert CPU_SOLVERS.refinements(request, Candidate(SOLVER)) == []


def int16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    made, problem = GemvInt16(), gemm_problem(a, b, True)
    out = np.full((len(a), b.shape[1]), np.nan, np.float32)
    run_plan(made.plan(problem), {"x": a, "w": made.pack_weights(problem, b), "out": out})
    return out


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("zeros", [0.05, 0.3, 0.9, 1.0])
def test_rows_that_only_zeros_multiply_are_skipped(m: int, zeros: float) -> None:
    rng = np.random.default_rng(m)
    for k in (3, BLOCK, 3 * BLOCK + 77):
        a, b = pair(m, 70, k)
        a[:, rng.random(k) < zeros] = 0
        a[:, k // 2 :: 5] = -0.0
        np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, atol=5e-3)


def test_a_dense_block_before_empty_ones() -> None:
    a, b = pair(1, 40, 4 * BLOCK)
    a[:, BLOCK:-2] = 0
    np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, atol=5e-3)


@pytest.mark.parametrize("limit", ["avx2", "sse"])
def test_narrower_vectors(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", limit)
    a, b = pair(2, 75, BLOCK + 9)
    a[:, ::3] = 0
    np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, atol=5e-3)


@pytest.mark.parametrize("magnitude", [1e-36, 1e-20, 1.0, 1e30, 1e36])
def test_error_is_half_a_step_of_the_blocks_largest_weight(magnitude: float) -> None:
    rng = np.random.default_rng(3)
    b = (rng.standard_normal((2 * BLOCK, 50)) * 10.0 ** rng.integers(-6, 1, 50)).astype(np.float32)
    b *= np.float32(magnitude) / np.abs(b).max()
    b[BLOCK:] *= 1e-3
    made = np.concatenate([int16(row[None], b) for row in np.eye(2 * BLOCK, dtype=np.float32)[::37]])
    largest = np.abs(b).reshape(2, BLOCK, 50).max(1).repeat(BLOCK, 0)[::37]
    np.testing.assert_array_less(np.abs(made - b[::37].astype(float)), np.maximum(largest * 2.0**-16.98, 2.0**-126))


def test_an_outlier_costs_its_own_block_alone() -> None:
    b = np.random.default_rng(5).standard_normal((6 * BLOCK + 7, 40)).astype(np.float32)
    b[2 * BLOCK + 3] = 64
    error = np.abs(np.concatenate([int16(row[None], b) for row in np.eye(len(b), dtype=np.float32)[::9]]) - b[::9])
    own = np.arange(len(b))[::9] // BLOCK == 2
    assert error[~own].max() < 5 * 2.0**-17 < error[own].max() < 64.6 * 2.0**-17


@pytest.mark.parametrize("zeros", [0.3, 0.8])
def test_rows_of_large_weights_are_skipped_where_few_are_left(zeros: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv_int16, "FAR_BYTES", 0)
    a, b = pair(2, 70, 3 * BLOCK + 77)
    a[:, np.random.default_rng(2).random(a.shape[1]) < zeros] = 0
    np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, atol=2e-3)


def test_sums_overflow_only_where_floats_do() -> None:
    a, b = pair(1, 64, 300)
    b = np.abs(b) + 1
    np.testing.assert_allclose(int16(a * np.float32(1e35), b), (a * np.float32(1e35)).astype(float) @ b, rtol=2e-2)
    np.testing.assert_allclose(int16(a * np.float32(1e-27), b), (a * np.float32(1e-27)).astype(float) @ b, atol=1e-29)
    for k in (1, BLOCK, 2 * BLOCK):
        a, b = np.full((1, k), np.finfo(np.float32).min), np.full((k, 40), np.float32(1e-3))
        np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, rtol=1e-4)


def test_infinities_and_nan_on_the_left() -> None:
    a, b = pair(3, 64, 300)
    b[7, :8] = 0
    b[7, 8:16] = 1e-30
    a[0, 7], a[1, 9] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(int16(a, b), a.astype(float) @ b, atol=5e-3)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 6e36])
def test_weights_without_a_scale_are_refused(value: float) -> None:
    a, b = pair(1, 70, 300)
    b[299, 69] = value
    with pytest.raises(UnsuitedWeights):
        GemvInt16().pack_weights(gemm_problem(a, b, True), b)


@pytest.mark.parametrize("transposed", [False, True])
def test_columns_of_too_wide_a_range_are_refused(transposed: bool) -> None:
    def refused(b: np.ndarray) -> bool:
        b = b.T.copy().T if transposed else b
        try:
            GemvInt16().pack_weights(gemm_problem(np.ones((1, len(b)), np.float32), b, True), b)
        except UnsuitedWeights:
            return True
        return False

    _, b = pair(1, 600, 2 * BLOCK + 3)
    sparse = b * (np.random.default_rng(1).random(b.shape) < 0.01)
    for suited in (b, sparse, np.ones_like(b), np.zeros_like(b), b * np.float32(1e-42), b[:1], b[:257]):
        assert not refused(suited)
    for column in (0, 599):
        for largest, others in ((1.0, 1e-9), (1.0, -1e-6), (1e4, 1.0)):
            wide = b.copy()
            wide[:, column] = others
            wide[7, column] = wide[BLOCK + 9, column] = largest
            assert refused(wide)
        wide = b.copy()
        wide[3, column] = 1e4
        wide[BLOCK + 3, column] = -1e4
        assert refused(wide)


def test_int16_is_chosen_with_fast_math_for_weights_that_are_waited_for() -> None:
    assert select(GemmProblem(1, 1000, 1000, fast_math=True), 2).name == "gemv_int16"
    assert select(GemmProblem(1, 1000, 1000, fast_math=True), 2, None, ("gemv_int16",)).name == "gemv"
    assert select(GemmProblem(1, 1000, 1000), 2).name == "gemv"
    assert select(GemmProblem(1, 1000, 1000, types=element_types("float64"), fast_math=True), 2).name == "gemv"
    assert select(GemmProblem(4, 1000, 1000, fast_math=True), 2).name == "gemv"
    assert select(GemmProblem(1, 100, 100, fast_math=True), 2).name == "gemv"


@pytest.mark.parametrize("solver_name", list(SOLVERS))
@pytest.mark.parametrize("by_columns", [False, True])
def test_large_weights_were_packed_by_one_thread(
    solver_name: str, by_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = SOLVERS[solver_name]
    _, b = pair(1, 3000, 1000)
    b = np.ascontiguousarray(b.T).T if by_columns else b
    problem = gemm_problem(np.ones((1, 1000), np.float32), b, True)
    seen: list[set[int]] = []

    def noting(function: Callable[[Any], object], items: Iterable[Any], threads: int) -> None:
        seen.append(set())
        begun = threading.Barrier(threads)

        def run(item: Any) -> None:
            if threading.get_ident() not in seen[-1]:
                seen[-1].add(threading.get_ident())
                begun.wait(60)
            function(item)

        on_threads(run, items, threads)

    packed = []
    for cpus in (3, 1):
        for module in (panels, int16_weights):
            monkeypatch.setattr(module, "allowed_cpus", lambda cpus=cpus: cpus)
            monkeypatch.setattr(module, "on_threads", noting)
        packed.append(made.pack_weights(problem, b))
    assert [len(threads) for threads in seen] == [3, 1]
    assert packed[0].tobytes() == packed[1].tobytes()


def test_weights_that_a_second_thread_finds_unsuited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int16_weights, "allowed_cpus", lambda: 2)
    _, b = pair(1, 6000, 1000)
    b[999, 5999] = np.inf
    problem = gemm_problem(np.ones((1, 1000), np.float32), b, True)
    with pytest.raises(UnsuitedWeights, match="infinite"):
        GemvInt16().pack_weights(problem, b)
