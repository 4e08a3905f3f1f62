"""Matrix products of symbolic lengths: planned once, right for every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.core.dim import Dim

from .contracting import apply_full_epilogue, full_epilogue, full_epilogue_arrays
from .open_contracting import LENGTHS, Planned, packed, symbols

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


def error(
    planned: Planned, sample: dict[Dim, int], a: np.ndarray, b: np.ndarray, weights: Any
) -> tuple[float, list[str]]:
    """Largest error of a product with `full_epilogue`, relative to the largest result, and who computed it."""
    rng = np.random.default_rng(len(a.shape))
    sums = a.astype(np.float64) @ b.astype(np.float64)
    e = full_epilogue_arrays(rng, sums.shape[:-1], sums.shape[-1], a.dtype.name)
    expected = apply_full_epilogue(sums, e)
    out = np.full(sums.shape, np.nan, a.dtype)
    taken = planned.run(sample, weights, {"x": a, "out": out, **e})
    assert taken
    return float(np.abs(out - expected).max() / max(np.abs(expected).max(), 1)), taken


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n, k", [(70, 33), (16, 1200)])
def test_rows_of_constant_weights(n: int, k: int, dtype: str) -> None:
    _, (rows,) = symbols("rows")
    rng = np.random.default_rng(n)
    b = rng.standard_normal((k, n)).astype(dtype)
    problem = GemmProblem(rows, n, k, types=element_types(dtype))
    planned = Planned(problem, full_epilogue(dtype))
    assert planned.served == 1 and planned.names == ["gemv", "gemm"]
    for m in (*LENGTHS, 1000):
        a = rng.standard_normal((m, k)).astype(dtype)
        found, taken = error(planned, {rows: m}, a, b, b)
        assert found < TOLERANCE[dtype] * k**0.5, (m, taken)
        assert taken == (["gemv"] if m <= 4 else ["gemm"])


def test_batches_that_share_weights_are_rows() -> None:
    _, (batch, seq) = symbols("batch", "seq")
    rng = np.random.default_rng(5)
    b = rng.standard_normal((24, 40)).astype(np.float32)
    lens = (batch, seq)
    problem = GemmProblem(seq, 40, 24, (batch,), packed((*lens, 24)), (0, 40, 1))
    planned = Planned(problem, full_epilogue("float32"), ((), packed((*lens, 40))[:-1], packed((*lens, 1))[:-1], ()))
    assert planned.request.problem.m is batch * seq
    for rows in ((1, 1), (4, 1), (1, 3), (3, 17), (2, 200)):
        a = rng.standard_normal((*rows, 24)).astype(np.float32)
        found, taken = error(planned, dict(zip((batch, seq), rows)), a, np.broadcast_to(b, (rows[0], 24, 40)), b)
        assert found < 1e-4 and taken == (["gemv"] if rows[0] * rows[1] <= 4 else ["gemm"])
