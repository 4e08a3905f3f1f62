"""Matrix products: every solver against NumPy."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes  # noqa: F401 - NumPy then knows bfloat16
import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.blocking import cut
from mgx_numba.codegen.cpu.contraction.gemm import GemmInPlace, GemmPacked, GemmPacking
from mgx_numba.codegen.cpu.contraction.prologue import rows_conflict
from mgx_numba.codegen.cpu.contraction.solvers import GEMM_SOLVERS, select
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.microkernels.tile_table import TILES
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    epilogue_of,
    full_epilogue,
    full_epilogue_arrays,
    gemm_problem,
    needs_page_protection,
    run_plan,
)

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


def check(a: np.ndarray, b: np.ndarray, constant: bool, threads: int = 1, seed: int = 0) -> None:
    """Every applicable solver, with an epilogue."""
    rng = np.random.default_rng(seed)
    problem = gemm_problem(a, b, constant)
    dtype = a.dtype.name
    expected_sums = a.astype(np.float64) @ b.astype(np.float64)
    e = full_epilogue_arrays(rng, expected_sums.shape[:-1], problem.n, dtype)
    expected = apply_full_epilogue(expected_sums, e)
    solvers = [solver for solver in GEMM_SOLVERS if solver.refusal(problem) is None]
    assert solvers
    for solver in solvers:
        out = np.full(expected.shape, np.nan, dtype)
        packed = solver.pack_weights(problem, b)
        if solver.packed_lens(problem):
            assert packed.shape == solver.packed_lens(problem)
        run_plan(solver.plan(problem, full_epilogue(dtype), (), threads), {"x": a, "w": packed, "out": out, **e})
        error = np.abs(out - expected).max() / max(np.abs(expected).max(), 1)
        assert error < TOLERANCE[dtype] * max(problem.k, 1) ** 0.5, solver.name


def pair(m: int, n: int, k: int, batch: tuple[int, ...] = (), dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a = rng.standard_normal((*batch, m, k)).astype(dtype)
    return a, rng.standard_normal((*batch, k, n)).astype(dtype)


def transposed(a: np.ndarray) -> np.ndarray:
    """Return the same matrix in column-major memory."""
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 12, 13, 23, 30])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 32, 33, 70])
def test_sizes(m: int, n: int) -> None:
    for k in (1, 3, 4, 63):
        check(*pair(m, n, k), constant=True)
        check(*pair(m, n, k), constant=False)


@pytest.mark.parametrize("ceiling", ["", "avx2", "sse"])
def test_row_blocks_that_are_no_whole_tiles(monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for m in (25, 26, 37, 49, 98, 196):
        check(*pair(m, 17, 24), True, threads=2)
        check(*pair(m, 161, 24), True, threads=2)
        check(*pair(m, 17, 1700), True, threads=2)
        check(*pair(m, 17, 24, (2,)), False, threads=3)


def test_two_threads_get_equal_shares_of_rows() -> None:
    tile = next(t for t in TILES if t.name == "avx512_12x2" and t.dtype == "float32")
    for m, n, k in ((196, 64, 384), (784, 32, 192), (3136, 24, 144), (49, 160, 960)):
        blocking = cut(tile, m, n, k, 1, 1, threads=2)
        share = blocking.rows * blocking.row_blocks(m)
        assert blocking.parts == 2
        assert 0 <= share - m / 2 < blocking.row_blocks(m)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_of_rows_panels_and_depth(constant: bool, threads: int) -> None:
    for m, n, k in ((70, 300, 40), (400, 70, 90), (40, 70, 2500), (13, 33, 5000), (1, 500, 3000)):
        check(*pair(m, n, k), constant, threads)


@pytest.mark.parametrize("a_by_columns", [False, True])
@pytest.mark.parametrize("b_by_columns", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_strides(a_by_columns: bool, b_by_columns: bool, batch: tuple[int, ...]) -> None:
    a, b = pair(19, 37, 41, batch)
    a = transposed(a) if a_by_columns else a
    b = transposed(b) if b_by_columns else b
    check(a, b, constant=False)
    check(a, b, constant=True)


def test_heads_beside_each_other() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((2, 17, 3, 8)).astype(np.float32).transpose(0, 2, 1, 3)
    b = rng.standard_normal((2, 21, 3, 8)).astype(np.float32).transpose(0, 2, 3, 1)
    check(a, b, constant=False)


@pytest.mark.parametrize("m", [1, 7])
def test_one_matrix_for_the_whole_batch_makes_rows_of_it(m: int) -> None:
    a, b = pair(m, 20, 9, (4, 3))
    shared = np.broadcast_to(b[0, 0], b.shape)
    check(a, shared, constant=True)
    check(a, shared, constant=False)
    plan = GemmPacked().plan(gemm_problem(a, shared, True))
    assert len(plan.launches) == 1 and plan.launches[0].flops == 2 * 12 * m * 20 * 9


def test_more_batch_dimensions_than_the_kernel_steps_through() -> None:
    a, b = pair(5, 6, 7, (2, 3, 2, 2, 2))
    swapped = b.transpose(4, 1, 2, 3, 0, 5, 6)
    check(a, swapped, constant=False)
    check(transposed(a), transposed(swapped), constant=False)
    check(a, swapped, constant=True)


def test_strided_right_hand_side_without_contiguous_dimension() -> None:
    a, b = pair(14, 40, 21)
    room = np.full((42, 120), np.nan, np.float32)
    room[::2, ::3] = b
    check(a, room[::2, ::3], constant=False)


def test_empty_sum_is_zero() -> None:
    a, b = np.zeros((5, 0), np.float32), np.zeros((0, 9), np.float32)
    problem = gemm_problem(a, b, True)
    out = np.full((5, 9), np.nan, np.float32)
    solver = GemmPacked()
    run_plan(solver.plan(problem), {"x": a, "w": solver.pack_weights(problem, b), "out": out})
    assert not out.any()


def test_float64() -> None:
    for m, n, k in ((1, 9, 30), (14, 40, 21), (30, 5, 2000)):
        check(*pair(m, n, k, dtype="float64"), constant=True)
        check(*pair(m, n, k, (2,), dtype="float64"), constant=False)


@pytest.mark.parametrize("ceiling", ["avx2", "sse"])
def test_other_instruction_sets(monkeypatch: pytest.MonkeyPatch, ceiling: str) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for m, n, k in ((1, 33, 30), (7, 20, 21), (30, 9, 2000)):
        check(*pair(m, n, k), constant=True)
        check(*pair(m, n, k), constant=False)


def test_output_rows_in_a_wider_buffer() -> None:
    a, b = pair(14, 20, 9)
    room = np.full((14, 50), 7.25, np.float32)
    out = room[:, 11:31]
    problem = gemm_problem(a, b, True, out)
    solver = GemmPacked()
    run_plan(solver.plan(problem), {"x": a, "w": solver.pack_weights(problem, b), "out": out})
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
    assert np.all(room[:, :11] == 7.25) and np.all(room[:, 31:] == 7.25)


def test_not_a_number_stays_in_its_row_and_column() -> None:
    a, b = pair(15, 40, 33)
    a[3, 5], a[8, 0] = np.nan, np.inf
    b[7, 39] = np.nan
    for constant in (True, False):
        problem = gemm_problem(a, b, constant)
        for solver in GEMM_SOLVERS:
            if solver.refusal(problem) is None:
                out = np.zeros((15, 40), np.float32)
                run_plan(solver.plan(problem), {"x": a, "w": solver.pack_weights(problem, b), "out": out})
                np.testing.assert_allclose(out, a @ b, rtol=1e-3, atol=1e-4)


def test_weights_may_be_a_broadcast_view() -> None:
    a, _ = pair(6, 50, 20)
    b = np.broadcast_to(np.float32(0.5), (20, 50))
    problem = GemmProblem(6, 50, 20)
    solver = GemmPacked()
    out = np.zeros((6, 50), np.float32)
    run_plan(solver.plan(problem), {"x": a, "w": solver.pack_weights(problem, b), "out": out})
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "function", "expected"),
    [
        ("bool", lambda s, acc, e: s.gt(acc, e), lambda s, e: s > e),
        ("float16", lambda s, acc, e: s.cast(s.sub(acc, e), Type.half_type), lambda s, e: (s - e).astype(np.float16)),
        ("float64", lambda s, acc, e: s.cast(acc, Type.double_type), lambda s, e: s.astype(np.float64)),
        ("float32", lambda s, acc, e: s.mul(acc, s.const(2, Type.float_type)), lambda s, e: s * 2),
    ],
)
def test_epilogue_of_another_dtype(dtype: str, function, expected) -> None:
    a, b = pair(14, 37, 9)
    problem = gemm_problem(a, b, True)
    epilogue = epilogue_of(function, "per_n")
    assert epilogue.dtype == dtype
    bias = np.linspace(-1, 1, 37, dtype=np.float32)
    out = np.zeros((14, 37), dtype)
    solver = GemmPacked()
    arrays = {"x": a, "w": solver.pack_weights(problem, b), "out": out, "e0": bias}
    run_plan(solver.plan(problem, epilogue), arrays)
    np.testing.assert_allclose(out, expected(a @ b, bias), rtol=2e-3, atol=1e-3)


def test_epilogue_operand_with_its_own_strides() -> None:
    a, b = pair(4, 20, 9, (3,))
    residual = np.random.default_rng(0).standard_normal((3, 2, 40)).astype(np.float32)[:, 1, 5:25]
    problem = gemm_problem(a, b, False)
    epilogue = epilogue_of(lambda s, acc, e: s.add(acc, e), "full")
    out = np.zeros((3, 4, 20), np.float32)
    run_plan(GemmInPlace().plan(problem, epilogue, ((80, 0),)), {"x": a, "w": b, "out": out, "e0": residual})
    np.testing.assert_allclose(out, a @ b + residual[:, None], rtol=1e-4, atol=1e-5)


def test_kernels_do_not_depend_on_sizes() -> None:
    first = GemmPacked().plan(GemmProblem(1, 5, 7))  # in both the last panel has fewer columns than one vector
    second = GemmPacked().plan(GemmProblem(900, 2981, 4000, a_strides=(1, 900)), threads=7)
    assert first.kernels == second.kernels
    pair_ = [GemmPacking().plan(GemmProblem(4, n, 30, (n,), b_constant=False)).kernels for n in (2, 98)]
    assert pair_[0] == pair_[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(300, 401, 257, ()), (512, 512, 512, ()), (128, 128, 64, (24,)), (20000, 8, 16, ())]
)
def test_a_computed_right_hand_side_that_many_rows_read_is_packed(m, n, k, batch, dtype) -> None:
    """Read in place it took 1.3 to 2.2 times as long."""
    assert select(GemmProblem(m, n, k, batch, types=element_types(dtype), b_constant=False)).name == "gemm_packing"


def test_a_computed_right_hand_side_that_few_rows_read_stays_in_place() -> None:
    assert select(GemmProblem(4, 3072, 768, b_constant=False)).name == "gemm_in_place"


def test_refusals_say_why() -> None:
    assert "not a constant" in (GemmPacked().refusal(GemmProblem(2, 3, 4, b_constant=False)) or "")
    by_columns = GemmProblem(2, 3, 4, b_strides=(1, 4), b_constant=False)
    assert "not contiguous" in (GemmInPlace().refusal(by_columns) or "")
    assert GemmPacking().refusal(by_columns) is None


def test_strides_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ShapeError, match="a_strides has 2 entries; expected 3"):
        GemmProblem(2, 3, 4, (5,), a_strides=(4, 1))


@needs_page_protection
@pytest.mark.parametrize("ceiling", ["", "avx2"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_nothing_past_the_end_is_read(monkeypatch: pytest.MonkeyPatch, ceiling: str, by_columns: bool) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    a, b = pair(5, 37, 11)
    guard = GuardedPages()
    placed = guard.place(np.ascontiguousarray(b.T)).T if by_columns else guard.place(b)
    a = guard.place(a)
    for constant in (False, True):
        problem = gemm_problem(a, placed, constant)
        for solver in GEMM_SOLVERS:
            if solver.refusal(problem) is None:
                out = guard.place(np.zeros((5, 37), np.float32))
                w = solver.pack_weights(problem, placed)
                run_plan(solver.plan(problem), {"x": a, "w": guard.place(w) if constant else w, "out": out})
                np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


@needs_page_protection
def test_an_empty_sum_reads_no_left_operand() -> None:
    problem = GemmProblem(5000, 1, 0, (3,))
    a, b, out = (np.zeros((3, *lens), np.float32) for lens in ((5000, 0), (0, 1), (5000, 1)))
    packed = GuardedPages().place(GemmPacked().pack_weights(problem, b))
    run_plan(GemmPacked().plan(problem), {"x": a, "w": packed, "out": out})
    assert not out.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 11, 12, 13, 25, 37])
def test_rows_that_conflict_in_the_l1_cache_are_copied(dtype: str, m: int) -> None:
    with using(replace(machine(), l1_ways=1)):
        for n, k, batch in ((1, 1024, ()), (33, 1024, (2,)), (70, 2048, ()), (17, 5120, ())):
            a, b = pair(m, n, k, batch, dtype)
            check(a, b, constant=True, threads=2)
            a[..., m // 2, k - 3 :] = [np.nan, np.inf, -np.inf]
            special(a, b)
        wide = pair(m, 33, 2048, (), dtype)[0]
        check(wide[:, 5:1030], pair(m, 33, 1025, (), dtype)[1], constant=True)  # views whose lengths are odd


def special(a: np.ndarray, b: np.ndarray) -> None:
    """Compare the packed product of rows that hold NaN and infinities with NumPy's."""
    problem, solver = gemm_problem(a, b, True), GemmPacked()
    out = np.full((*a.shape[:-1], b.shape[-1]), 7, a.dtype)
    run_plan(solver.plan(problem, threads=2), {"x": a, "w": solver.pack_weights(problem, b), "out": out})
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.isnan(out) == np.isnan(expected)).all()
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_rows_are_copied_instead_of_converting_weights_on_the_fly(stored: str) -> None:
    rng = np.random.default_rng(8)
    for m, k, n in ((128, 128, 256), (37, 100, 70)):
        a, b = rng.standard_normal((m, 1024)).astype(np.float32), rng.standard_normal((k, n)).astype(stored)
        problem = GemmProblem(m, n, k, types=element_types(f"float32 {stored} float32 float32"), a_strides=(1024, 1))
        solver, out = GemmPacked(), np.full((m, n), np.nan, np.float32)
        if solver.refusal(problem) is not None:
            pytest.skip("no tile for these weights")
        with using(replace(machine(), l1_ways=1)):
            plan = solver.plan(problem, threads=2)
        run_plan(plan, {"x": a, "w": solver.pack_weights(problem, b), "out": out})
        np.testing.assert_allclose(out, a[:, :k].astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


def test_rows_conflict_by_their_distance_and_the_cache() -> None:
    tile = next(t for t in TILES if t.name == "avx512_12x2" and t.dtype == "float32")
    with using(replace(machine(), l1_sets=64, l1_ways=8)):
        assert [rows_conflict(tile, 4 * k) for k in (768, 1024, 1040, 512, 3072, 0)] == [
            False, True, False, False, True, False,
        ]  # fmt: skip
    with using(replace(machine(), l1_sets=64, l1_ways=12)):
        assert not rows_conflict(tile, 4096)
