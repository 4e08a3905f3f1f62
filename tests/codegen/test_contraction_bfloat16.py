"""Products and convolutions with bfloat16 weights; left operands in bfloat16 or rounded to it, sums in float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.bfloat16 import ConvBfloat16, GemmBfloat16
from mgx_numba.codegen.cpu.contraction.blocking import Blocking
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.microkernels.bfloat16_table import BFLOAT16_TILES
from mgx_numba.codegen.cpu.microkernels.tile_table import TILE_TABLE_ROWS, declared_tile
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import ElementTypes, element_types
from mgx_numba.codegen.problems.gemm import GemmProblem

from ..features import ARM
from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    convolve,
    element_strides,
    epilogue_of,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)

TYPES = element_types("float32 bfloat16 float32 float32")
NARROW = element_types("bfloat16 bfloat16 float32 float32")
needs_tile = pytest.mark.skipif(declared_tile(NARROW) is None, reason="the CPU has no fast AVX512-BF16")
GEMM, CONV = GemmBfloat16(), ConvBfloat16()
TOLERANCE = 2e-6
"""Error of float32 sums, relative to the largest result."""


def narrow(x: np.ndarray) -> np.ndarray:
    """Rounded, with the strides that a copy keeps."""
    return x.astype(ml_dtypes.bfloat16, order="K")


def rounded(x: np.ndarray) -> np.ndarray:
    return narrow(x).astype(np.float64)


def multiply(
    a: np.ndarray, b: np.ndarray, threads: int = 1, pages: GuardedPages | None = None, blocking: Any = None
) -> np.ndarray:
    types = TYPES if a.dtype == np.float32 else NARROW
    problem = GemmProblem(
        a.shape[-2], b.shape[-1], a.shape[-1], a.shape[:-2], element_strides(a), element_strides(b), types=types
    )
    assert GEMM.refusal(problem) is None
    packed = GEMM.pack_weights(problem, b)
    assert packed.shape == GEMM.packed_lens(problem) and packed.dtype == declared_tile(types).right_word
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, np.float32)
    if pages:
        a, packed, out = (pages.place(array) for array in (a, packed, out))
    run_plan(GEMM.plan(problem, threads=threads, blocking=blocking), {"x": a, "w": packed, "out": out}, pages)
    return out


def pair(m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([m, n, k])
    b = rng.standard_normal((*batch, k, n)).astype(np.float32)
    return rng.standard_normal((*batch, m, k)).astype(np.float32), b.astype(ml_dtypes.bfloat16)


def near(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    near_to(found, *sums(a, b))


def sums(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the product of the rounded numbers, and that of their magnitudes, in float64."""
    left, right = rounded(a), b.astype(np.float64)
    return left @ right, np.abs(left) @ np.abs(right)


def near_to(found: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    assert (np.abs(found - expected) <= TOLERANCE * scale + 1e-30).all()


@needs_tile
def test_odd_sizes() -> None:
    """All pairs of rows and columns at two depths, and all depths at three of the pairs."""
    sizes = [(m, n, k) for m in (1, 2, 5, 13, 25) for n in (1, 16, 33, 70) for k in (3, 65)]
    sizes += [(m, n, k) for m, n in ((1, 16), (5, 1), (25, 70)) for k in (0, 1, 2, 32)]
    for m, n, k in sizes:
        a, b = pair(m, n, k)
        expected = sums(a, b)
        near_to(multiply(a, b), *expected)
        near_to(multiply(narrow(a), b), *expected)


@needs_tile
def test_bfloat16_is_read_where_it_lies_in_words() -> None:
    """Rows, batches and slices of whole words take no launch; others are brought there."""
    word = declared_tile(NARROW).packing.k_interleave
    a, b = pair(6, 21, 9 * word, (2, 3))
    every, part, odd = narrow(a), narrow(a)[..., word:], narrow(a)[..., 1:]
    for left, right, launches in ((every, b, 1), (part, b[..., word:, :], 1), (odd, b[..., 1:, :], 2)):
        near(multiply(left, right), left.astype(np.float32), right)
        strides = element_strides(left), element_strides(right)
        problem = GemmProblem(6, 21, left.shape[-1], (2, 3), *strides, types=NARROW)
        names = [launch.kernel.name for launch in GEMM.plan(problem).launches]
        assert sum("left" in name for name in names) == launches - 1
    turned = np.ascontiguousarray(narrow(a).swapaxes(-1, -2)).swapaxes(-1, -2)
    near(multiply(turned, b), a, b)
    crossed = narrow(a).swapaxes(0, 1)
    near(multiply(crossed, b.swapaxes(0, 1)), a.swapaxes(0, 1), b.swapaxes(0, 1))


@needs_tile
def test_steps_of_depth_threads_strides_and_batches() -> None:
    for m, n, k, threads in ((40, 130, 5001, 2), (300, 70, 92, 3)):
        a, b = pair(m, n, k)
        near(multiply(a, b, threads), a, b)
    a, b = pair(6, 21, 37, (2, 3))
    near(multiply(a, b), a, b)
    near(multiply(a.swapaxes(0, 1), b.swapaxes(0, 1)), a.swapaxes(0, 1), b.swapaxes(0, 1))
    turned = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    near(multiply(turned, b), turned, b)
    repeated = np.broadcast_to(b[:, :1], b.shape)
    near(multiply(a, repeated), a, repeated)


@needs_tile
def test_operands_are_rounded_to_nearest_even() -> None:
    ties = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8), 0.0, -0.0])
    a = ties[:, None] * np.float32([[1, 0]])
    found = multiply(a, np.eye(2, 3).astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found[:, 0], rounded(ties))


@needs_tile
def test_infinities_nan_and_overflow_spread_as_in_float32() -> None:
    a, b = pair(7, 20, 9)
    a[1, 2], a[2, 3], a[3, 0], a[4, 5] = np.inf, np.nan, -np.inf, np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        expected = narrow(a).astype(np.float32) @ b.astype(np.float32)
        lefts = a, narrow(a)
    for left in lefts:
        found = multiply(left, b)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
        np.testing.assert_array_equal(np.sign(found[np.isinf(found)]), np.sign(expected[np.isinf(expected)]))


@needs_tile
@needs_page_protection
def test_nothing_past_the_end_is_read() -> None:
    for k in (1, 2, 33, 64):
        a, b = pair(5, 37, k)
        for left in (a, narrow(a)):
            near(multiply(left, b, pages=GuardedPages()), a, b)


@needs_tile
def test_blockings_of_tuning_compute_the_same() -> None:
    a, b = pair(50, 200, 2100)
    tried = GEMM.blockings(GemmProblem(50, 200, 2100, types=TYPES), 2)
    assert tried
    expected = sums(a, b)
    for blocking in tried:
        near_to(multiply(a, b, 2, blocking=blocking), *expected)


CONVOLUTIONS = [
    ConvProblem(2, 5, 19, (7, 9), (3, 3), pads_begin=(1, 1), pads_end=(1, 0), types=TYPES),
    ConvProblem(1, 24, 40, (9, 8), (1, 1), types=TYPES),
    ConvProblem(2, 10, 34, (6, 7), (1, 1), types=TYPES),
    ConvProblem(3, 6, 80, (5, 3), (2, 2), pads_begin=(1, 0), pads_end=(0, 1), types=TYPES),
    ConvProblem(1, 8, 34, (11,), (4,), (2,), (2,), (3,), (0,), types=TYPES),
    ConvProblem(1, 12, 6, (5, 6), (3, 2), pads_begin=(2, 0), pads_end=(0, 1), groups=3, types=TYPES),
    ConvProblem(1, 3, 64, (15, 15), (7, 7), (2, 2), pads_begin=(3, 3), pads_end=(3, 3), types=TYPES),
    ConvProblem(1, 3, 64, (15, 17), (7, 7), (2, 2), types=TYPES),
]


@needs_tile
@pytest.mark.parametrize("types", [TYPES, NARROW], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("problem", CONVOLUTIONS)
def test_convolutions_with_an_epilogue(problem: ConvProblem, types: ElementTypes) -> None:
    rng = np.random.default_rng(1)
    problem = dataclasses.replace(problem, types=types)
    assert CONV.refusal(problem) is None
    x = rng.standard_normal((problem.batch, *problem.in_lens, problem.in_channels)).astype(np.float32)
    x = x if types is TYPES else narrow(x)
    w = rng.standard_normal(problem.weight_lens).astype(np.float32).astype(ml_dtypes.bfloat16)
    rows = (problem.batch, *problem.out_lens)
    e = full_epilogue_arrays(rng, rows, problem.out_channels, "float32")
    out = np.full((*rows, problem.out_channels), np.nan, np.float32)
    plan = CONV.plan(problem, full_epilogue("float32"), (), 2)
    run_plan(plan, {"x": x, "w": CONV.pack_weights(problem, w), "out": out, **e})
    expected = apply_full_epilogue(convolve(problem, rounded(x), w.astype(np.float64)), e)
    assert np.abs(out - expected).max() <= 3e-6 * np.abs(expected).max()


@needs_tile
def test_weights_take_two_bytes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx512")
    problem = GemmProblem(64, 768, 512, types=TYPES)
    assert select(problem).name == "gemm_bfloat16"
    assert GEMM.pack_weights(problem, np.zeros((512, 768), ml_dtypes.bfloat16)).nbytes == 2 * 512 * 768


def test_other_types_and_tiles() -> None:
    for types in ("float32", "float32 float16 float32 float32", "bfloat16", "float16 bfloat16 float32 float32"):
        assert "not float32 or bfloat16 times bfloat16" in (
            GEMM.refusal(GemmProblem(4, 5, 6, types=element_types(types))) or ""
        )
    for tile in BFLOAT16_TILES:
        assert tile.rows * tile.vectors + tile.vectors + 1 <= 32 and tile.rows < TILE_TABLE_ROWS


def test_without_the_instruction_there_is_no_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", "-bf16" if ARM else "-avx512bf16")
    assert "no tile is declared" in (GEMM.refusal(GemmProblem(4, 5, 6, types=TYPES)) or "")


@pytest.mark.skipif(ARM, reason="measured on x86-64")
@needs_tile
def test_the_cost_of_rounding_and_of_finishing_counts() -> None:
    """Sums of few products are quicker in float32; for pixels of three channels both take about as long."""
    for channels, filters, lens, kernel, groups, gain in (
        (3, 24, (224, 224), (3, 3), 1, 0.95), (24, 112, (56, 56), (1, 1), 4, 1),
    ):  # fmt: skip
        wide = ConvProblem(1, channels, filters, lens, kernel, groups=groups)
        narrow = dataclasses.replace(wide, types=TYPES)
        assert CONV.estimate(narrow) > gain * select(wide).estimate(wide)


@needs_tile
def test_sums_of_tiles_of_all_rows_are_finished_in_registers() -> None:
    """Sums of partial tiles, at the end of a matrix, go through memory."""
    a, b = pair(31, 77, 46)
    problem = GemmProblem(31, 77, 46, types=NARROW)
    whole = multiply(narrow(a), b)
    kernels = GEMM.plan(problem).launches[-1].kernels
    assert any(f"{declared_tile(NARROW).finishing}(" in kernel.text for kernel in kernels)
    near(whole, a, b)
    near(np.concatenate([multiply(narrow(a)[i : i + 3], b) for i in range(0, 31, 3)]), a, b)


@needs_tile
@pytest.mark.parametrize("types", [TYPES, NARROW], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("n", [3, 20, 66, 100])
def test_long_epilogues_of_sums_over_steps(n: int, types: ElementTypes) -> None:
    """Sums wait for them in memory that holds those of earlier steps."""
    a, b = pair(31, n, 46)
    a = a if types is TYPES else narrow(a)
    e = np.random.default_rng(n).standard_normal((31, n)).astype(np.float32)
    epilogue = epilogue_of(lambda s, acc, e: s.silu(s.add(acc, e)), "full", fast_math=True)
    expected = rounded(a) @ b.astype(np.float64) + e
    expected /= 1 + np.exp(-expected)
    problem = GemmProblem(31, n, 46, types=types)
    packed = GEMM.pack_weights(problem, b)
    for depth in (8, 23):
        out = np.full((31, n), np.nan, np.float32)
        plan = GEMM.plan(problem, epilogue, blocking=Blocking(24, 2, 1, depth))
        run_plan(plan, {"x": a, "w": packed, "out": out, "e0": e})
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
