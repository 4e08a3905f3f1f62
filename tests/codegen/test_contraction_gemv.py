"""Products of a few rows: what the tests of all solvers for products leave out."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.contraction.gemv import MOST_ROWS, GemvPacked
from mgx_numba.codegen.contraction.problem import Epilogue, EpilogueOperand, GemmProblem
from mgx_numba.codegen.contraction.select import select
from mgx_numba.codegen.tuning.configurations import Candidate, Request, refinements

from .contracting import apply_full_epilogue, full_epilogue, full_epilogue_arrays, gemm_problem, run_plan

SOLVER = GemvPacked()


def pair(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


@pytest.mark.parametrize("m", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize("n", [1, 31, 33, 64, 97, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_panels_that_do_not_fill_groups(m: int, n: int, threads: int) -> None:
    for k in (1, 5, 130):
        a, b = pair(m, n, k)
        problem = gemm_problem(a, b, True)
        e = full_epilogue_arrays(np.random.default_rng(n), (m,), n, "float32")
        out = np.full((m, n), np.nan, np.float32)
        arrays = {"x": a, "w": SOLVER.pack_weights(problem, b), "out": out, **e}
        run_plan(SOLVER.plan(problem, full_epilogue("float32"), (), threads), arrays)
        np.testing.assert_allclose(out, apply_full_epilogue(a.astype(float) @ b, e), rtol=1e-4, atol=1e-4)


def test_operands_apart_in_memory() -> None:
    a, b = pair(3, 70, 21)
    wide = np.full((3, 90), 7.25, np.float32)
    spread = np.full((21, 6), np.nan, np.float32)
    spread[:, ::2] = a.T
    x, out = spread.T[::2], wide[:, 9:79]
    residual = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    problem = gemm_problem(x, b, True, out)
    epilogue = Epilogue((EpilogueOperand("float32", "full"),), ("v0 = add(acc, e0)",), "v0")
    arrays = {"x": x, "w": SOLVER.pack_weights(problem, b), "out": out, "e0": residual}
    run_plan(SOLVER.plan(problem, epilogue, ((200,),)), arrays)
    np.testing.assert_allclose(out, a @ b + residual[:, :70], rtol=1e-4, atol=1e-4)
    assert np.all(wide[:, :9] == 7.25) and np.all(wide[:, 79:] == 7.25)


def test_result_of_another_dtype() -> None:
    a, b = pair(1, 50, 9)
    problem = gemm_problem(a, b, True)
    out = np.zeros((1, 50), np.bool_)
    epilogue = Epilogue((), ("v0 = gt(acc, 0)",), "v0", "bool")
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
    assert refinements(request, Candidate(SOLVER)) == []
