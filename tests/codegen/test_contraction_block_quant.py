"""Products with low-bit block weights, for few and many rows, against the operator's NumPy meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction import block_quant
from mgx_numba.codegen.cpu.contraction.block_quant import halves_hold, scales_in_halves
from mgx_numba.codegen.cpu.contraction.gemm_block_quant import GemmBlockQuant, GemmBlockQuantBytes
from mgx_numba.codegen.cpu.contraction.gemv import task_grain
from mgx_numba.codegen.cpu.contraction.gemv_block_quant import MOST_ROWS, ROLLED_SUMS, GemvBlockQuant
from mgx_numba.codegen.cpu.contraction.quantised_rows import LARGEST, SHARE
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.machine import machine, using
from mgx_numba.codegen.cpu.microkernels.int8_table import has_dot4
from mgx_numba.codegen.cpu.toolchain.compiler import inspect
from mgx_numba.codegen.launch import Solution
from mgx_numba.codegen.problems.epilogue import Epilogue
from mgx_numba.codegen.problems.gemm import BlockFormat, BlockWeights, GemmProblem
from mgx_numba.codegen.tuning.record import TuningRecord
from mgx_numba.codegen.tuning.request import Request, problem_of
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op
from tests.values import element_strides

from ..features import ARM
from .contracting import (
    GuardedPages,
    apply_full_epilogue,
    epilogue_of,
    full_epilogue,
    full_epilogue_arrays,
    needs_page_protection,
    run_plan,
)

GEMV, GEMM, BYTE_ROWS = GemvBlockQuant(), GemmBlockQuant(), GemmBlockQuantBytes()
FORMS = [BlockFormat(4, 32, True), BlockFormat(4, 16, False), BlockFormat(4, 128, True), BlockFormat(8, 32, True)]
HALVES = [
    BlockFormat(4, 32, True, half_scales=True),
    BlockFormat(4, 64, False, half_scales=True),
    BlockFormat(8, 256, True, half_scales=True),
]
"""With scales in float16."""


def weights(form: BlockFormat, n: int, k: int) -> BlockWeights:
    rng = np.random.default_rng([n, k, form.size])
    shape = (n, form.blocks(k))
    codes = rng.integers(0, 256, (*shape, form.size * form.bits // 8), dtype=np.uint8)
    points = rng.integers(0, 1 << form.bits, shape, dtype=np.uint8) if form.zero_points else None
    scales = rng.uniform(0.01, 0.1, shape).astype(np.float16 if form.half_scales else np.float32)
    return BlockWeights(codes, scales.astype(np.float32), points)


def expected(form: BlockFormat, x: np.ndarray, w: BlockWeights) -> np.ndarray:
    """In float64."""
    op = make_op("matmul_nbits", bits=form.bits, block_size=form.size)
    out = Shape(Type.double_type, (*x.shape[:-1], len(w.codes)))
    return op.compute(out, [x.astype(float), w.codes, w.scales, *([] if w.zero_points is None else [w.zero_points])])


def problem_for(x: np.ndarray, n: int, form: BlockFormat, fast_math: bool, **more: Any) -> GemmProblem:
    return GemmProblem(
        x.shape[-2], n, x.shape[-1], x.shape[:-2], element_strides(x), (*(0 for _ in x.shape[:-2]), n, 1),
        blocks=form, fast_math=fast_math, **more,
    )  # fmt: skip


def rows(*lens: int) -> np.ndarray:
    return np.random.default_rng(lens).standard_normal(lens).astype(np.float32)


def far(out: np.ndarray, right: np.ndarray) -> float:
    """The largest error over the largest result."""
    return float(np.abs(out - right).max() / np.abs(right).max())


NATIVE = [("", form, fast_math) for form in FORMS + HALVES for fast_math in (True, False)]
PAIRS = "x86-64-v3"
"""Features with which two bytes are multiplied at once: those of AVX2 leave VNNI of 256 bits where there is such."""
OTHERS = [("avx2", FORMS[0], True), *((PAIRS, form, True) for form in FORMS + HALVES[:2]), ("sse", FORMS[0], True)]
"""Enabled CPU features, without dot products of four bytes: with dot products of pairs, and without any."""


@pytest.mark.parametrize("features, form, fast_math", [*NATIVE, *OTHERS], ids=str)
def test_few_rows(features: str, form: BlockFormat, fast_math: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    for n, k in ((70, 300), (33, 15), (1, 40)):
        x, w = rows(3, k), weights(form, n, k)
        problem = problem_for(x, n, form, fast_math)
        e = full_epilogue_arrays(np.random.default_rng(n), (3,), n, "float32")
        out = np.full((3, n), np.nan, np.float32)
        packed = GEMV.pack_blocks(problem, w)
        assert packed.shape == GEMV.packed_lens(problem)
        run_plan(GEMV.plan(problem, full_epilogue("float32"), (), 2), {"x": x, "w": packed, "out": out, **e})
        assert far(out, apply_full_epilogue(expected(form, x, w), e)) < (5e-5 if fast_math else 3e-6)


@pytest.mark.parametrize("features", ["", PAIRS])
@pytest.mark.parametrize("m", [1, 9, MOST_ROWS])
def test_rows_in_parts(m: int, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    form = FORMS[0]
    x, w = rows(m, 100), weights(form, 40, 100)
    for fast_math in (True, False):
        problem = problem_for(x, 40, form, fast_math)
        out = np.zeros((m, 40), np.float32)
        run_plan(GEMV.plan(problem), {"x": x, "w": GEMV.pack_blocks(problem, w), "out": out})
        assert far(out, expected(form, x, w)) < 5e-5


@pytest.mark.parametrize("form", FORMS[1:] + HALVES, ids=str)
def test_many_rows(form: BlockFormat) -> None:
    for m, n, k in ((17, 33, 40), (50, 100, 700)):
        x, w = rows(m, k), weights(form, n, k)
        problem = problem_for(x, n, form, False)
        e = full_epilogue_arrays(np.random.default_rng(n), (m,), n, "float32")
        out = np.full((m, n), np.nan, np.float32)
        arrays = {"x": x, "w": GEMM.pack_blocks(problem, w), "out": out, **e}
        run_plan(GEMM.plan(problem, full_epilogue("float32"), (), 2), arrays)
        assert far(out, apply_full_epilogue(expected(form, x, w), e)) < 3e-6


@pytest.mark.parametrize("form", [*FORMS, *HALVES], ids=str)
@pytest.mark.parametrize("n", [1, 17, 53])
def test_columns_are_packed_alike_in_chunks_of_any_size(
    form: BlockFormat, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 3 * form.size - 5
    problem, w = problem_for(rows(1, k), n, form, False), weights(form, n, k)
    at_once = GEMM.pack_blocks(problem, w)
    monkeypatch.setattr(block_quant, "CHUNK_CODES", 1)
    np.testing.assert_array_equal(GEMM.pack_blocks(problem, w), at_once)


def on_batch(plan: Solution, x: np.ndarray, packed: np.ndarray, n: int, residual: np.ndarray) -> np.ndarray:
    out = np.zeros((*x.shape[:-1], n), np.float32)
    run_plan(plan, {"x": x, "w": packed, "out": out, "e0": residual})
    return out


@pytest.mark.parametrize("solver", [GEMV, GEMM], ids=lambda s: s.name)
def test_batches_of_any_strides(solver: Any) -> None:
    form, n = FORMS[0], 20
    w = weights(form, n, 40)
    for x, shared in ((rows(3, 2, 40), False), (rows(40, 2, 3).T, False), (rows(2, 1, 3, 40)[:, :, ::2], True)):
        problem = problem_for(x, n, form, True)
        residual = rows(*x.shape[-2:-1], n) if shared else rows(*x.shape[:-1], n)
        strides = (0,) * (x.ndim - 2) + (n,) if shared else element_strides(residual)[:-1]
        sum_ = epilogue_of(lambda s, acc, e: s.add(acc, e), "full")
        out = on_batch(solver.plan(problem, sum_, (strides,)), x, solver.pack_blocks(problem, w), n, residual)
        assert far(out, expected(form, x, w) + residual) < 5e-5


BYTES = [""] if ARM else ["", "avx2", PAIRS, "-avx512vnni,-avxvnni"]
"""Features with which rows are bytes: four products at once in 512 and in 256 bits, and two in 256 and in 512."""


@pytest.mark.skipif(ARM and not host.has("i8mm"), reason="rows stay float32 without I8MM")
@pytest.mark.parametrize("features", BYTES)
@pytest.mark.parametrize("form", [*FORMS[:3], HALVES[1]], ids=str)
def test_rows_of_bytes(features: str, form: BlockFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer rows with each block's largest magnitude are exact; other rows have an error of half a step of 127."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    n, k = 70, 300
    w, allowed = weights(form, n, k), replace(form, int8_rows=True)
    whole = np.random.default_rng(k).integers(-127, 128, (3, k)).astype(np.float32)
    whole[:, :: form.size] = -127
    for x, least, most in ((whole, 0, 3e-6), (rows(3, k), 1e-4, 2e-2)):
        problem = problem_for(x, n, allowed, True)
        out = np.full((3, n), np.nan, np.float32)
        run_plan(GEMV.plan(problem, Epilogue(), (), 2), {"x": x, "w": GEMV.pack_blocks(problem, w), "out": out})
        assert least <= far(out, expected(form, x, w)) < most
        exact = problem_for(x, n, allowed, False)
        run_plan(GEMV.plan(exact, Epilogue(), (), 2), {"x": x, "w": GEMV.pack_blocks(exact, w), "out": out})
        assert far(out, expected(form, x, w)) < 3e-6


@pytest.mark.skipif(not has_dot4(host.host(), host.host().vector_bits), reason="no products of four bytes")
@pytest.mark.parametrize("form", [*FORMS, HALVES[1]], ids=str)
def test_many_rows_of_bytes(form: BlockFormat) -> None:
    """Integer rows are exact; others have an error of half a step of 127, and rows with infinities are floats."""
    n, k, m = 70, 300, 19
    w, allowed = weights(form, n, k), replace(form, int8_rows=True)
    whole = np.random.default_rng(k).integers(-127, 128, (m, k)).astype(np.float32)
    whole[:, :: form.size] = -127
    infinite = rows(m, k)
    infinite[5, 200] = np.inf
    for x, least, most in ((whole, 0, 3e-6), (rows(m, k), 1e-4, 2e-2), (infinite, 0, 3e-6)):
        problem = problem_for(x, n, allowed, True)
        e = full_epilogue_arrays(np.random.default_rng(n), (m,), n, "float32")
        out = np.full((m, n), np.nan, np.float32)
        arrays = {"x": x, "w": BYTE_ROWS.pack_blocks(problem, w), "out": out, **e}
        run_plan(BYTE_ROWS.plan(problem, full_epilogue("float32"), (), 2), arrays)
        with np.errstate(invalid="ignore"):
            right = apply_full_epilogue(expected(form, x, w), e)
        finite = np.isfinite(right)
        assert np.array_equal(np.isfinite(out), finite)
        assert least <= far(out[finite], right[finite]) < most
    assert select(problem_for(rows(200, 256), 512, allowed, True)).name == "gemm_nbits_bytes"
    assert select(problem_for(rows(16, 256), 512, allowed, True)).name == "gemv_nbits"
    for fast_math, given in ((False, allowed), (True, form)):
        assert BYTE_ROWS.declines(problem_for(rows(17, 64), 64, given, fast_math)) is not None


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_threads_share_a_row(form: BlockFormat) -> None:
    """Parts of a row, the last one shorter, give the whole row's result; infinities in any part count."""
    n, k = 20, 3 * SHARE + 40
    w = weights(form, n, k)
    x = rows(2, k)
    for change in (0.0, np.inf):
        x[1, -1] += change
        problem = problem_for(x, n, form, True)
        packed, found = GEMV.pack_blocks(problem, w), []
        for threads in (1, 7):
            plan = GEMV.plan(problem, Epilogue(), (), threads)
            out = np.zeros((2, n), np.float32)
            run_plan(plan, {"x": x, "w": packed, "out": out})
            found.append((plan.launches[0].geometry.tasks, out))
        (whole, first), (shared, second) = found
        assert (whole, shared) == (2, 6)
        np.testing.assert_array_equal(first, second)
        with np.errstate(invalid="ignore"):
            right = expected(form, x, w).astype(np.float32)
        assert np.array_equal(np.isfinite(second), np.isfinite(right))
        np.testing.assert_array_equal(second[~np.isfinite(right)], right[~np.isfinite(right)])
        assert far(second[0], right[0]) < 5e-5


@pytest.mark.parametrize("features", ["", PAIRS])
@pytest.mark.parametrize("int8_rows", [False, True])
def test_rows_that_integers_cannot_stand_for(features: str, int8_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    form = replace(FORMS[0], int8_rows=int8_rows)
    w = weights(form, 40, 96)
    for value in (np.inf, -np.inf, np.nan, 3e38, 1e-36, 0.0):
        x = np.zeros((2, 96), np.float32)
        x[1, 37] = value
        problem = problem_for(x, 40, form, True)
        out = np.zeros((2, 40), np.float32)
        run_plan(GEMV.plan(problem), {"x": x, "w": GEMV.pack_blocks(problem, w), "out": out})
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(out, expected(form, x, w).astype(np.float32), rtol=1e-5, atol=0)


@pytest.mark.parametrize("features, bits", [("", 8), ("", 4), ("avx2", 8), (PAIRS, 4)])
@pytest.mark.parametrize("int8_rows", [False, True])
def test_extremes_fit_the_sums(features: str, bits: int, int8_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that does not multiply four bytes at once has codes of 8 bits in float32, and rounds each sum."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    integers = bits == 4 or has_dot4(host.host(), host.host().vector_bits)
    for form in (BlockFormat(bits, 16, True, int8_rows), BlockFormat(bits, 1024 // bits, True, int8_rows)):
        k = 2 * form.size
        for sign in (1, -1):
            check_extremes(form, k, sign * LARGEST[1 if int8_rows else 2], 1e-6 if integers else k * 2.0**-24)


def check_extremes(form: BlockFormat, k: int, value: float, rtol: float) -> None:
    """Check constant rows times the largest codes."""
    x = np.full((1, k), np.float32(value))
    w = weights(form, 16, k)
    w.codes[...] = 255
    assert w.zero_points is not None
    w.zero_points[...] = 0
    problem = problem_for(x, 16, form, True)
    out = np.zeros((1, 16), np.float32)
    run_plan(GEMV.plan(problem), {"x": x, "w": GEMV.pack_blocks(problem, w), "out": out})
    np.testing.assert_allclose(out, expected(form, x, w), rtol=rtol)


@pytest.mark.parametrize(
    "form", [BlockFormat(8, 512, True), BlockFormat(4, 8192, True, True), BlockFormat(4, 1 << 18, True, True)], ids=str
)
def test_blocks_whose_sums_would_not_fit_32_bits(form: BlockFormat) -> None:
    """Blocks of 8 bits and of 512 wrapped; those of 4 bits and bytes still fit, though not 16 times as large."""
    check_extremes(form, form.size, LARGEST[1 if form.int8_rows else 2], 1e-5)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_upper_codes_that_are_not_shifted(m: int) -> None:
    """Exact for integers as long as the sums fit the registers, like shifted codes."""
    for size in (64, 128):
        form, k = BlockFormat(4, size, True, True), 3 * size - 5
        w = weights(form, 70, k)
        x = np.random.default_rng(m).integers(-127, 128, (m, k)).astype(np.float32)
        x[:, ::size] = 127
        problem = problem_for(x, 70, form, True)
        out = np.full((m, 70), np.nan, np.float32)
        run_plan(GEMV.plan(problem, Epilogue(), (), 2), {"x": x, "w": GEMV.pack_blocks(problem, w), "out": out})
        assert far(out, expected(form, x, w)) < 3e-6


def test_a_thread_claims_groups_of_even_shares() -> None:
    assert task_grain(32, 32 * 160 << 10, 2) == 2
    assert task_grain(32, 32 << 20, 2) == 1
    assert task_grain(7, 7 << 10, 2) == 4
    assert task_grain(86, 86 * 270 << 10, 2) == 1 and task_grain(86, 86 * 270 << 10, 2, 64 << 10) == 4
    assert task_grain(7, 7 << 20, 1) == 7
    for groups in range(1, 40):
        assert 1 <= task_grain(groups, groups * 1000, 3) <= groups


@pytest.mark.parametrize("n, blocks", [(1, 1), (20, 3), (0, 2), (2, 0)])
def test_scales_in_halves_are_what_they_were(n: int, blocks: int) -> None:
    """All float16, subnormal ones too, are, times any power of two; zeros, infinities and NaN with them."""
    codes = np.random.default_rng([n, blocks]).integers(0, 0x7C00, (n, blocks), dtype=np.uint16)
    scales = codes.view(np.float16).astype(np.float32) * np.float32(-(2.0**-90))
    scales[:, 1:2], scales[:, 2:], scales[1:2] = np.inf, np.nan, 0
    halves, factors = scales_in_halves(scales)
    assert halves.dtype == np.float16 and halves.shape == scales.shape
    assert factors.dtype == np.float32 and factors.shape == (n,)
    np.testing.assert_array_equal(halves.astype(np.float32) * factors[:, None], scales)
    assert halves_hold(scales)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-135, 2.0**-120, 1.0, 2.0**127])
def test_scales_that_halves_cannot_stand_for_are_near(scale: float) -> None:
    """Half of the last step of the largest at most; subnormal ones are a few such steps in float32, too."""
    scales = (np.random.default_rng(0).uniform(-1, 1, (50, 7)) * scale).astype(np.float32)
    assert halves_hold(scales) == (scale == 2.0**-149)
    halves, factors = scales_in_halves(scales)
    errors = np.abs(halves.astype(float) * factors[:, None] - scales).max(axis=1)
    assert (errors <= 2.0**-11 * np.abs(scales).max(axis=1)).all()


def test_halves_hold_no_scales_far_apart() -> None:
    assert not halves_hold(np.array([[65504.0, 2.0**-24]], np.float32))
    assert halves_hold(np.array([[65504.0, 2.0**-13]], np.float32))


@pytest.mark.parametrize("features, m", [("", 1), (PAIRS, 2), ("", 20)])
def test_scales_that_are_no_usual_numbers(features: str, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    for form in (replace(HALVES[0], int8_rows=True), HALVES[1], replace(FORMS[0], int8_rows=True)):
        n, k = 18, 5 * form.size
        x, w = np.full((m, k), 127.0, np.float32), weights(form, n, k)
        for column, value in enumerate((np.nan, np.inf, -np.inf, 0.0, 2.0**-24, 2.0**110, 1.5 * 2.0**-130, -1.0)):
            w.scales[column, 3] = value
            w.scales[column, 4:] = 0
            if not 2.0**-14 <= abs(value) <= 1:
                w.scales[column, :3] = 0 if np.isfinite(value) else 0.5
        solver, problem = GEMV if m < 20 else GEMM, problem_for(x, n, form, True)
        out = np.zeros((m, n), np.float32)
        run_plan(solver.plan(problem), {"x": x, "w": solver.pack_blocks(problem, w), "out": out})
        with np.errstate(all="ignore"):
            right = expected(form, x, w).astype(np.float32)
        usual = np.isfinite(right)
        np.testing.assert_array_equal(np.isfinite(out), usual)  # where sums are of integers, infinities may be no NaN
        np.testing.assert_allclose(out[usual], right[usual], rtol=2e-5, atol=0)


@needs_page_protection
@pytest.mark.parametrize("form", [FORMS[0], *HALVES[:2]], ids=str)
def test_nothing_is_touched_past_the_end(form: BlockFormat) -> None:
    for m, solver in ((1, GEMV), (20, GEMM)):
        pages = GuardedPages()
        x, w = rows(m, 75), weights(form, 37, 75)
        problem = problem_for(x, 37, form, True)
        out = np.zeros((m, 37), np.float32)
        placed = pages.place(out)
        packed = pages.place(solver.pack_blocks(problem, w))
        run_plan(solver.plan(problem), {"x": pages.place(x), "w": packed, "out": placed}, pages)
        assert far(placed, expected(form, x, w)) < 5e-5


@needs_page_protection
@pytest.mark.parametrize("features", ["", "avx2"])
def test_weights_that_come_from_memory_are_asked_for_early(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    n, k, form = 190, 300, FORMS[0]
    x, w, problem = rows(2, k), weights(form, n, k), problem_for(rows(2, k), n, form, True)
    packed = GEMV.pack_blocks(problem, w)
    size, found = packed.nbytes, []
    far_from = replace(problem, blocks=replace(form, from_memory=True))
    for asked, last_cache_bytes, streams in (
        (problem, 2 * size, 4),
        (problem, size, 3),
        (problem, size - 1, 2),
        (far_from, 2 * size, 2),
    ):
        with using(replace(machine(), last_cache_bytes=last_cache_bytes)):
            plan = GEMV.plan(asked)
        text = plan.launches[-1].kernel.text
        assert ("prefetch(w1" in text) == (streams < 4)
        assert sum(f"w{q} = " in text for q in range(8)) == streams
        pages = GuardedPages()
        arrays = {"x": x, "w": packed, "out": np.zeros((2, n), np.float32)}
        arrays = {name: pages.place(array) for name, array in arrays.items()}
        run_plan(plan, arrays, pages, 0xFF)
        found.append(arrays["out"].copy())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    assert far(found[0], expected(form, x, w)) < 1e-4


@pytest.mark.parametrize("features", ["", "avx2"])
@pytest.mark.parametrize("form", [BlockFormat(4, 16, False, True), *FORMS], ids=str)
def test_weights_that_come_from_memory_are_read_by_a_loop_of_a_line(
    form: BlockFormat, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few accumulators, loads dominate; results equal those of the wide loops. NaN and infinities in rows use the
    float32 path."""
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    n, k, quads = 83, 3 * form.size + 7, has_dot4(host.host(), host.host().vector_bits)
    w = weights(form, n, k)
    for m in (1, ROLLED_SUMS + 1):
        x = rows(m, k)
        problem = problem_for(x, n, form, True)
        packed = GEMV.pack_blocks(problem, w)
        found = []
        for last_cache_bytes in (4 * packed.nbytes, packed.nbytes, 0):  # all is kept, some of it, nothing
            with using(replace(machine(), last_cache_bytes=last_cache_bytes)):
                plan = GEMV.plan(problem)
            kernel = plan.launches[-1].kernel
            assert ("prefetch(" in kernel.text) == (last_cache_bytes < 2 * packed.nbytes)
            assert ("keep_rolled()" in kernel.text) == (quads and not last_cache_bytes and m == 1)
            for value in (1.0, np.inf, np.nan):
                x[0, 5] = value
                found.append(np.full((m, n), -1, np.float32))
                run_plan(plan, {"x": x, "w": packed, "out": found[-1]})
        for kept, *ahead in zip(found[:3], found[3:6], found[6:], strict=True):
            for other in ahead:
                np.testing.assert_array_equal(kept, other)
        assert not np.isfinite(found[1][0]).any() and np.isnan(found[2][0]).all()


def test_loops_stay_rolled() -> None:
    """LLVM takes some steps of such a loop at once for some CPUs."""
    text = ["def kernel(args, begin, end):", "    x = pointer_float32(args, 0)", "    s = const_float32(0, 4)"]
    text += ["    for i in range(args[2]):", "        keep_rolled()", "        s = add(s, load(x, 4 * i, 4))"]
    text += ["    store(pointer_float32(args, 1), 0, s)"]
    assert inspect(cpu_kernel("sum_kernel", "\n".join(text) + "\n")).optimised.count(" fadd ") == 1


def test_which_solver_and_which_kernels() -> None:
    form = FORMS[0]
    assert select(problem_for(rows(1, 4096), 4096, form, True)).name == "gemv_nbits"
    assert select(problem_for(rows(200, 256), 512, form, True)).name == "gemm_nbits"
    assert select(GemmProblem(1, 64, 64)).name not in ("gemv_nbits", "gemm_nbits")
    longer = [GEMV.plan(problem_for(rows(1, k), n, form, True)).kernels for n, k in ((64, 64), (1024, 96))]
    assert longer[0] == longer[1]
    problem = problem_for(rows(1, 64), 64, form, True)
    assert GEMM.packed_lens(problem) == GEMV.packed_lens(problem)


def test_records_know_the_form() -> None:
    problem = problem_for(rows(1, 64), 64, FORMS[0], True)
    key = Request(problem, Epilogue(), (), 2, True).key()
    assert key != Request(problem_for(rows(1, 64), 64, FORMS[1], True), Epilogue(), (), 2, True).key()
    assert "blocks" not in Request(GemmProblem(1, 64, 64), Epilogue(), (), 2, True).key().fields
    record = TuningRecord.__new__(TuningRecord)
    object.__setattr__(record, "problem", key)
    found = problem_of(record)
    assert isinstance(found, GemmProblem) and found.blocks == FORMS[0]
    for form in (replace(FORMS[0], int8_rows=True), HALVES[0], replace(HALVES[1], int8_rows=True)):
        key = Request(problem_for(rows(1, 64), 64, form, True), Epilogue(), (), 2, True).key()
        object.__setattr__(record, "problem", key)
        found = problem_of(record)
        assert isinstance(found, GemmProblem) and found.blocks == form


def test_forms_that_there_are_not() -> None:
    for bits, size in ((3, 32), (4, 24), (4, 8)):
        with pytest.raises(ShapeError, match=f"weights of {bits} bits in blocks of {size}"):
            BlockFormat(bits, size, False)
