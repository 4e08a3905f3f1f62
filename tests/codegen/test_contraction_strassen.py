"""Strassen's method for matrix products against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgx_numba.codegen.contraction.blocking import Blocking
from mgx_numba.codegen.contraction.problem import GemmProblem
from mgx_numba.codegen.contraction.strassen import GemmStrassen
from mgx_numba.codegen.cpu.tile_table import tile_for

from .contracting import (
    apply_full_epilogue,
    full_epilogue,
    full_epilogue_arrays,
    gemm_problem,
    run_plan,
)

SOLVERS = (GemmStrassen(1), GemmStrassen(2))
TILE = tile_for("float32")

pytestmark = pytest.mark.skipif(max(TILE.variants()) > TILE.lanes, reason="no tile of Strassen's product")


def multiply(
    solver: GemmStrassen, a: np.ndarray, b: np.ndarray, blocking: Blocking | None = None, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The product with an epilogue, and what it should be."""
    problem = replace(gemm_problem(a, b, True), fast_math=True)
    sums = a.astype(np.float64) @ b.astype(np.float64)
    e = full_epilogue_arrays(np.random.default_rng(1), sums.shape[:-1], problem.n, "float32")
    out = np.full(sums.shape, np.nan, np.float32)
    plan = solver.plan(problem, full_epilogue("float32"), (), threads, blocking)
    run_plan(plan, {"x": a, "w": solver.pack_weights(problem, b), "out": out, **e})
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
