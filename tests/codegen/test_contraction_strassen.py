"""Strassen's method for matrix products against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.blocking import Blocking
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.contraction.strassen.solver import GemmStrassen
from mgx_numba.codegen.cpu.contraction.strassen.strassen_blocking import PAD, Cut, next_strip
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.launch import TaskRange
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem

from ..features import VNNI, choosing_for
from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    full_epilogue,
    full_epilogue_arrays,
    gemm_problem,
    needs_page_protection,
    run_plan,
)

SOLVERS = (GemmStrassen(1), GemmStrassen(2))
TILE = tile_for(element_types("float32"))
FINITE = 0x45
"""Fill byte of scratch, about 3e3 in every float. A task that meets NaN is repeated, which would hide a read of
unwritten memory."""

pytestmark = pytest.mark.skipif(max(TILE.variants()) > TILE.lanes, reason="no tile of Strassen's product")


def multiply(
    solver: GemmStrassen, a: np.ndarray, b: np.ndarray, blocking: Blocking | None = None, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the product with an epilogue, and its reference."""
    problem = replace(gemm_problem(a, b, True), fast_math=True)
    with np.errstate(invalid="ignore"):
        sums = a.astype(np.float64) @ b.astype(np.float64)
    e = full_epilogue_arrays(np.random.default_rng(1), sums.shape[:-1], problem.n, "float32")
    out = np.full(sums.shape, np.nan, np.float32)
    plan = solver.plan(problem, full_epilogue("float32"), (), threads, blocking)
    run_plan(plan, {"x": a, "w": solver.pack_weights(problem, b), "out": out, **e}, fill=FINITE)
    return out, apply_full_epilogue(sums, e)


def pair(m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    return rng.standard_normal((*batch, m, k), np.float32), rng.standard_normal((*batch, k, n), np.float32)


def depth(solver: GemmStrassen, parts: int) -> int:
    """A length of the sum that divides into blocks of ``parts`` vectors."""
    return (1 << solver.levels) * TILE.lanes * parts


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize(("m", "n"), [(4, 200), (7, 129), (53, 160), (64, 256), (101, 333), (150, 130)])
@pytest.mark.parametrize(("rows", "panels", "parts"), [(1, 1, 1), (25, 2, 2), (13, 1, 1), (99, 99, 1)])
def test_product(solver: GemmStrassen, m: int, n: int, rows: int, panels: int, parts: int) -> None:
    k = depth(solver, 6)
    a, b = pair(m, n, k)
    for deep in (k, k // (1 << solver.levels) // 3):
        out, expected = multiply(solver, a, b, Blocking(rows, panels, 1, deep, parts), 2)
        assert np.abs(out - expected).max() < 2e-4 * k**0.5


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize(("m", "n"), [(96, 200), (131, 333)])
def test_own_choice(solver: GemmStrassen, m: int, n: int) -> None:
    a, b = pair(m, n, 512)
    for threads in (1, 2, 3):
        out, expected = multiply(solver, a, b, None, threads)
        assert np.abs(out - expected).max() < 3e-3


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize("m", [5, 61, 150])
@pytest.mark.parametrize("panels", [1, 2, 7, 13])
def test_left_sums_are_made_in_time(solver: GemmStrassen, m: int, panels: int) -> None:
    grid = 1 << solver.levels
    for parts in (1, 3):
        a, b = pair(m, grid * panels * TILE.columns - 3, depth(solver, 2 * parts))
        out, expected = multiply(solver, a, b, Blocking(m, panels, 1, 2 * TILE.lanes))
        assert np.abs(out - expected).max() < 2e-4 * a.shape[1] ** 0.5


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_more_sums_than_the_queue_holds(solver: GemmStrassen) -> None:
    """Blocks of so many strips that their products could make more sums on the side than are queued at a time."""
    grid = 1 << solver.levels
    rows = 60 * TILE.rows
    a, b = pair(grid * rows - 1, grid * TILE.columns * 2, depth(solver, 4))
    for deep in (2, 4):
        out, expected = multiply(solver, a, b, Blocking(rows, 2, 1, deep * TILE.lanes))
        assert np.abs(out - expected).max() < 2e-4 * a.shape[1] ** 0.5


def test_heights_of_strips_are_those_of_the_kernel() -> None:
    for rows in range(1, 120):
        row, found = 0, []
        while row < rows:
            names: dict[str, int] = {}
            text = "\n".join(next_strip(TILE, str(rows - row)))
            exec(text, {"imod": lambda x, y: x % y, "idiv": lambda x, y: x // y}, names)
            found.append(names["height"])
            row += found[-1]
        assert tuple(found) == Cut(2, rows, 1, TILE.lanes, False).tiles(TILE)
        assert row - rows < PAD


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize("deep", [1440, 704, 464, 336, 240])
def test_left_sums_that_do_not_all_fit_beside_each_other(solver: GemmStrassen, deep: int) -> None:
    a, b = pair(75, 150, (1 << solver.levels) * deep)
    out, expected = multiply(solver, a, b, Blocking(13, 2, 1, deep))
    assert np.abs(out - expected).max() < 2e-4 * a.shape[1] ** 0.5


@needs_page_protection
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_touches_nothing_past_its_operands_and_its_scratch(solver: GemmStrassen) -> None:
    rng, pages = np.random.default_rng(0), GuardedPages()
    for m, n, parts, rows, panels in ((53, 161, 3, 13, 2), (25, 129, 1, 99, 99), (101, 130, 6, 7, 1)):
        k = depth(solver, parts)
        wide = pages.place(rng.standard_normal(m * (k + 3) - 3).astype(np.float32))
        a = np.lib.stride_tricks.as_strided(wide, (m, k), (4 * (k + 3), 4))
        b = rng.standard_normal((k, n), np.float32)
        problem = replace(gemm_problem(a, b, True), fast_math=True)
        e = {name: pages.place(array) for name, array in full_epilogue_arrays(rng, (m,), n, "float32").items()}
        out = pages.place(np.full((m, n), np.nan, np.float32))
        w = pages.place(solver.pack_weights(problem, b))
        for deep in (k, TILE.lanes):
            for value in (1.0, np.nan):
                a[m // 2, k // 2] = value
                plan = solver.plan(problem, full_epilogue("float32"), (), 2, Blocking(rows, panels, 1, deep))
                run_plan(plan, {"x": a, "w": w, "out": out, **e}, pages, FINITE)
                wanted = apply_full_epilogue(a.astype(np.float64) @ b.astype(np.float64), e)
                np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-4 * k**0.5)


class Kept(GuardedPages):
    """Remembers what it placed last."""

    def place(self, array: np.ndarray) -> np.ndarray:
        self.last = super().place(array)
        return self.last


@needs_page_protection
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_threads_have_scratch_of_their_own(solver: GemmStrassen) -> None:
    a, b = pair(150, 260, depth(solver, 2))
    problem = replace(gemm_problem(a, b, True), fast_math=True)
    arrays = {"x": a, "w": solver.pack_weights(problem, b), "out": np.empty((150, 260), np.float32)}
    whole = solver.plan(problem, threads=3, blocking=Blocking(12, 1, 1, TILE.lanes))
    (launch,) = whole.launches
    claims = -(-launch.geometry.tasks // launch.geometry.grain)
    assert claims == 3
    for count in (1, claims):
        fewer = TaskRange(min(count * launch.geometry.grain, launch.geometry.tasks), launch.geometry.grain)
        some, pages = replace(launch, geometry=fewer), Kept()
        run_plan(replace(whole, launches=(some,)), arrays, pages, FINITE)
        touched = (pages.last.reshape(claims, -1) != FINITE).any(axis=1)
        assert touched.tolist() == [i < count for i in range(claims)]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_batches_and_strided_rows(solver: GemmStrassen) -> None:
    k = depth(solver, 2)
    a, b = pair(30, 150, k, (2, 3))
    wide = np.full((2, 3, 30, k + 5), np.nan, np.float32)
    wide[..., :k] = a
    for left, right in ((wide[..., :k], b), (a, np.broadcast_to(b[:1, :1], b.shape)), (a[:, ::2], b[:, ::2])):
        out, expected = multiply(solver, left, right, Blocking(9, 1, 1, k))
        assert np.abs(out - expected).max() < 3e-3


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_error_is_that_of_ordinary_products_times_a_small_factor(solver: GemmStrassen) -> None:
    a, b = pair(128, 320, 512)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    errors = [np.sqrt(np.mean(((bare(one, a, b) - exact) / scale) ** 2)) for one in (GemmPacked(), solver)]
    assert errors[1] < (2.6, 3.7)[solver.levels - 1] * errors[0]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_row_and_column(solver: GemmStrassen, value: float) -> None:
    k = depth(solver, 2)
    for m, n, rows, panels in ((48, 256, 6, 1), (53, 230, 13, 2)):
        a, b = pair(m, n, k)
        a[5, 3] = value
        out = bare(solver, a, b, Blocking(rows, panels, 1, k))
        assert not np.isfinite(out[5]).any()
        plain = bare(GemmPacked(), a, b)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(plain))
        np.testing.assert_allclose(np.delete(out, 5, 0), np.delete(plain, 5, 0), rtol=0, atol=3e-4)
        b[7, 9] = value
        out, expected = multiply(solver, a, b, Blocking(rows, panels, 1, k), 2)
        np.testing.assert_array_equal(np.isfinite(out), np.isfinite(expected))


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_no_part_of_the_sum_and_no_block_lets_what_is_not_finite_out(solver: GemmStrassen) -> None:
    """Rows and columns of every block, where blocks overlap and the sum has several parts."""
    k, grid = depth(solver, 3), 1 << solver.levels
    a, b = pair(53, 230, k)
    clean = bare(GemmPacked(), a, b)
    blocking = Blocking(12, 2, 1, TILE.lanes)
    for block in range(grid):
        row, column, inner = 53 * block // grid + 1, 230 * block // grid + 1, k * block // grid + 1
        for of_a, of_b in ((row, None), (None, column), (row, column)):
            left, right = a.copy(), b.copy()
            strange = np.zeros(clean.shape, bool)
            if of_a is not None:
                left[of_a, inner] = np.inf
                strange[of_a] = True
            if of_b is not None:
                right[inner - 1, of_b] = np.nan
                strange[:, of_b] = True
            out = bare(solver, left, right, blocking)
            np.testing.assert_array_equal(np.isfinite(out), ~strange)
            np.testing.assert_allclose(out[~strange], clean[~strange], rtol=0, atol=3e-4)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
@pytest.mark.parametrize("left", [True, False])
def test_sums_that_overflow_are_plain_ones(solver: GemmStrassen, left: bool) -> None:
    """Sums of blocks may overflow where no element of the result does."""
    k = depth(solver, 2)
    a, b = pair(48, 256, k)
    large, small = (a, b) if left else (b.T, a)
    large[3], large[len(large) // 2 + 3] = 2e38, 2e38
    small *= 1e-3
    out, plain = (bare(one, a, b) for one in (solver, GemmPacked()))
    assert np.isfinite(plain).all()
    np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-6 * np.abs(plain).max())


def bare(solver: Any, a: np.ndarray, b: np.ndarray, blocking: Blocking | None = None) -> np.ndarray:
    """The product without an epilogue."""
    problem = replace(gemm_problem(a, b, True), fast_math=True)
    out = np.full((problem.m, problem.n), np.nan, np.float32)
    plan = solver.plan(problem, blocking=blocking)
    run_plan(plan, {"x": a, "w": solver.pack_weights(problem, b), "out": out}, fill=FINITE)
    return out


def test_refusals() -> None:
    problem = GemmProblem(512, 512, 512, fast_math=True)
    for solver in SOLVERS:
        assert solver.refusal(problem) is None
        for changes, reason in (
            ({"fast_math": False}, "fast_math is off"),
            ({"b_constant": False}, "not a constant"),
            ({"types": element_types("float64")}, "no tile"),
            ({"a_strides": (1, 512)}, "not contiguous"),
            ({"k": 500, "a_strides": (), "b_strides": ()}, "does not divide"),
            ({"k": 0, "a_strides": (), "b_strides": ()}, "does not divide"),
            ({"m": 10}, "too small"),
            ({"n": 16, "b_strides": (), "out_strides": ()}, "too small"),
        ):
            assert reason in (solver.refusal(replace(problem, **changes)) or ""), changes


def test_one_driver_and_one_tile_serve_all_epilogues_and_sizes() -> None:
    first = SOLVERS[0].plan(GemmProblem(512, 512, 512, fast_math=True))
    second = SOLVERS[1].plan(GemmProblem(1000, 2000, 1024, fast_math=True), full_epilogue("float32"), (), 3)
    shared = {kernel.name for kernel in first.kernels if kernel in second.kernels}
    assert len(first.kernels) == len(second.kernels) == 4 and len(shared) == 3


@pytest.mark.usefixtures("vector_code")
def test_chosen_for_large_products_only() -> None:
    with choosing_for("x86-64-v4", VNNI, methods=(("strassen", 1.0),)):
        assert select(GemmProblem(1024, 768, 768, fast_math=True)).name in {s.name for s in SOLVERS}
        for problem in (GemmProblem(1024, 768, 768), GemmProblem(64, 768, 768, fast_math=True)):
            assert select(problem).name == "gemm"


@pytest.mark.parametrize(("level", "methods"), [("x86-64-v4", ()), ("x86-64-v3", (("winograd", 1.0),))])
def test_not_chosen_on_cpus_where_nobody_measured_it(level: str, methods: tuple[tuple[str, float], ...]) -> None:
    with choosing_for(level, methods=methods):
        assert select(GemmProblem(1024, 768, 768, fast_math=True)).name == "gemm"
