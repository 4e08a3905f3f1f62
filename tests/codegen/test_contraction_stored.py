"""Float32 products and convolutions with weights stored in 16 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.conv import ConvDirect, ConvPointwise
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.gemv import GemvPacked
from mgx_numba.codegen.cpu.contraction.gemv_int16 import GemvInt16
from mgx_numba.codegen.cpu.microkernels.tile_table import declared_tile
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes
from mgx_numba.codegen.problems.gemm import GemmProblem

from ..features import ARM
from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    convolve,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)

STORED = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOLERANCE = 3e-6
"""Error of float32 sums of rounded products, relative to the largest result."""


FORMS = ("-bf16",) if ARM else ("-avx512bf16", "avx2")


@pytest.fixture(params=[(stored, form) for form in FORMS for stored in STORED])
def types(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ElementTypes:
    """Types, on a CPU without products of two bfloat16."""
    stored, features = request.param
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    found = ElementTypes("float32", stored, "float32", "float32")
    if declared_tile(found) is None:
        pytest.skip(f"no tile is declared for {found}")
    return found


def multiply(solver: Any, types: ElementTypes, m: int, n: int, k: int, pages: GuardedPages | None = None) -> float:
    """The largest error over the largest result."""
    rng = np.random.default_rng([m, n, k])
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n)).astype(STORED[types.b])
    problem = GemmProblem(m, n, k, types=types)
    assert solver.refusal(problem) is None
    packed = solver.pack_weights(problem, b)
    assert packed.shape == solver.packed_lens(problem) and packed.dtype.itemsize == 2
    out, e = np.full((m, n), np.nan, np.float32), full_epilogue_arrays(rng, (m,), n, "float32")
    if pages:
        a, packed, out = (pages.place(array) for array in (a, packed, out))
    run_plan(solver.plan(problem, full_epilogue("float32"), (), 2), {"x": a, "w": packed, "out": out, **e}, pages)
    expected = apply_full_epilogue(a.astype(np.float64) @ b.astype(np.float64), e)
    return float(np.abs(out - expected).max() / np.abs(expected).max())


def test_products(types: ElementTypes) -> None:
    for m, n, k in ((5, 33, 0), (2, 70, 3), (29, 100, 65), (40, 17, 2000), (50, 33, 0), (61, 100, 90)):
        assert multiply(GemmPacked(), types, m, n, k) < TOLERANCE


def is_converted_once(types: ElementTypes, m: int, n: int, k: int) -> bool:
    (launch,) = GemmPacked().plan(GemmProblem(m, n, k, types=types)).launches
    return "near = local_float32" in launch.kernel.text


def test_weights_of_many_rows_are_converted_once(types: ElementTypes) -> None:
    assert is_converted_once(types, 50, 100, 65)
    assert not is_converted_once(types, 12, 100, 65)
    assert not is_converted_once(types, 50, 512, 1000), "the panels that rows are read for do not fit together"


def test_batches_of_many_rows(types: ElementTypes) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 50, 20), np.float32), rng.standard_normal((3, 20, 70)).astype(STORED[types.b])
    for shared in (False, True):
        right = b[:1] if shared else b
        strides = (0 if shared else 20 * 70, 70, 1)
        problem = GemmProblem(50, 70, 20, (3,), b_strides=strides, types=types)
        packed = GemmPacked().pack_weights(problem, np.broadcast_to(right, b.shape))
        out = np.full((3, 50, 70), np.nan, np.float32)
        run_plan(GemmPacked().plan(problem), {"x": a, "w": packed, "out": out})
        expected = a.astype(np.float64) @ right.astype(np.float64)
        assert np.abs(out - expected).max() < TOLERANCE * np.abs(expected).max()


def test_products_of_few_rows(types: ElementTypes) -> None:
    for n, k in ((33, 5), (200, 131)):
        assert multiply(GemvPacked(), types, 1, n, k) < TOLERANCE


@needs_page_protection
def test_nothing_is_touched_past_the_end(types: ElementTypes) -> None:
    for solver, m in ((GemmPacked(), 3), (GemmPacked(), 50), (GemvPacked(), 1)):
        assert multiply(solver, types, m, 32, 7, GuardedPages()) < TOLERANCE


def test_convolutions(types: ElementTypes) -> None:
    for solver, problem in (
        (ConvDirect(), ConvProblem(2, 6, 20, (7, 5), (3, 3), pads_begin=(1, 1), pads_end=(1, 1), types=types)),
        (ConvDirect(), ConvProblem(1, 6, 20, (7, 5), (3, 2), (2, 1), groups=2, types=types)),
        (
            ConvDirect(),
            ConvProblem(2, 6, 70, (9, 8), (3, 3), groups=2, pads_begin=(1, 1), pads_end=(1, 1), types=types),
        ),
        (ConvDirect(), ConvProblem(1, 12, 9, (9, 8), (1, 1), groups=3, types=types)),
        (ConvDirect(), ConvProblem(1, 40, 40, (9, 8), (3, 3), (1, 1), types=types)),
        (ConvPointwise(), ConvProblem(2, 6, 40, (7, 5), (1, 1), types=types)),
    ):
        rng = np.random.default_rng(1)
        x = rng.standard_normal((problem.batch, *problem.in_lens, problem.in_channels), np.float32)
        w = rng.standard_normal(problem.weight_lens).astype(STORED[types.b])
        assert solver.refusal(problem) is None
        packed = solver.pack_weights(problem, w)
        out = np.zeros((problem.batch, problem.out_pixels, problem.out_channels), np.float32)
        run_plan(solver.plan(problem), {"x": x, "w": packed, "out": out})
        expected = convolve(problem, x, w).reshape(out.shape)
        assert np.abs(out - expected).max() < TOLERANCE * np.abs(expected).max()


def test_infinite_and_smallest_weights(types: ElementTypes) -> None:
    b = np.array([[np.inf, -np.inf, np.nan, 0.0, 6e-8, -(2.0**-14)]] * 3).astype(STORED[types.b])
    problem = GemmProblem(1, 6, 3, types=types)
    for solver in (GemmPacked(), GemvPacked()):
        out = np.zeros((1, 6), np.float32)
        run_plan(
            solver.plan(problem), {"x": np.ones((1, 3), np.float32), "w": solver.pack_weights(problem, b), "out": out}
        )
        np.testing.assert_array_equal(out, b.astype(np.float32).sum(0, keepdims=True))


def test_every_weight_is_exact(types: ElementTypes) -> None:
    b = np.arange(1 << 16, dtype=np.uint16).view(STORED[types.b])[None]
    problem = GemmProblem(2, b.size, 1, types=types)
    out = np.zeros((2, b.size), np.float32)
    weights = GemmPacked().pack_weights(problem, b)
    run_plan(GemmPacked().plan(problem), {"x": np.array([[1], [-2]], np.float32), "w": weights, "out": out})
    with np.errstate(over="ignore", invalid="ignore"):
        expected = b.astype(np.float32) * np.array([[1], [-2]], np.float32)
    np.testing.assert_array_equal(out, expected)


def test_weights_of_blocks_of_integers_are_of_float32() -> None:
    stored = GemmProblem(1, 64, 64, types=ElementTypes("float32", "float16", "float32", "float32"), fast_math=True)
    assert "float16" in str(GemvInt16().refusal(stored))
