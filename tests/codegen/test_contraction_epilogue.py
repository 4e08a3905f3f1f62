"""Tiles whose epilogue works in registers: every kind of epilogue, edge and spacing of rows against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from llvmlite import ir
from numba.core.errors import TypingError

from mgx_numba.codegen.cpu.contraction.conv import ConvDirect
from mgx_numba.codegen.cpu.contraction.gemm import GemmPacked
from mgx_numba.codegen.cpu.contraction.tile_source import epilogue_source
from mgx_numba.codegen.cpu.microkernels.inline import inline
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.core.types import Type

from .contracting import (
    apply_full_epilogue,
    convolve,
    epilogue_of,
    full_epilogue,
    full_epilogue_arrays,
    gemm_problem,
    run_plan,
)

FLOAT = Type.float_type
CEILINGS = pytest.mark.parametrize("ceiling", ["", "avx2", "sse"])


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def product(m: int, n: int, k: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * 1009 + n * 31 + k)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


@CEILINGS
@pytest.mark.parametrize("n", [3, 8, 16, 20, 24, 32, 39, 48, 61, 64])
def test_edges_of_rows_and_columns(monkeypatch: pytest.MonkeyPatch, ceiling: str, n: int) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for m in (12, 13, 24, 29, 50):
        a, b = product(m, n, 20)
        e = full_epilogue_arrays(np.random.default_rng(m), (m,), n, "float32")
        wide = np.full((m, n + 9), np.nan, np.float32)
        out = wide[:, 3 : 3 + n]
        problem = gemm_problem(a, b, True, out)
        packed = GemmPacked().pack_weights(problem, b)
        run_plan(GemmPacked().plan(problem, full_epilogue("float32")), {"x": a, "w": packed, "out": out, **e})
        np.testing.assert_allclose(out, apply_full_epilogue(a @ b, e), rtol=1e-4, atol=1e-4)
        assert np.isnan(wide[:, :3]).all() and np.isnan(wide[:, 3 + n :]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 5, 2500])
@pytest.mark.parametrize("n", [20, 24, 28, 66, 70])
def test_terms_and_steps_of_terms(dtype: str, k: int, n: int) -> None:
    a, b = product(40, n, k, dtype)
    out = np.full((40, n), np.nan, dtype)
    e = full_epilogue_arrays(np.random.default_rng(k), (40,), n, dtype)
    problem = gemm_problem(a, b, True)
    packed = GemmPacked().pack_weights(problem, b)
    run_plan(GemmPacked().plan(problem, full_epilogue(dtype)), {"x": a, "w": packed, "out": out, **e})
    np.testing.assert_allclose(out, apply_full_epilogue(a @ b, e), rtol=1e-3, atol=1e-3)


@CEILINGS
@pytest.mark.parametrize("k", [7, 2500])
@pytest.mark.parametrize("n", [3, 20, 40, 66, 100])
def test_long_epilogues_of_sums_over_steps(monkeypatch: pytest.MonkeyPatch, ceiling: str, n: int, k: int) -> None:
    """Sums that wait in memory for their epilogue take no place of sums that are still to be added to."""
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    a, b = product(50, n, k)
    a /= np.sqrt(np.float32(k))
    out = np.full((50, n), np.nan, np.float32)
    epilogue = epilogue_of(lambda s, acc, e: s.silu(s.add(acc, e)), "full", fast_math=True)
    e = np.random.default_rng(n).standard_normal((50, n)).astype(np.float32)
    packed = GemmPacked().pack_weights(problem := gemm_problem(a, b, True), b)
    run_plan(GemmPacked().plan(problem, epilogue), {"x": a, "w": packed, "out": out, "e0": e})
    np.testing.assert_allclose(out, silu(a @ b + e), rtol=1e-4, atol=1e-4)


@CEILINGS
@pytest.mark.parametrize(
    ("function", "fast_math", "dtype", "expected"),
    [
        (lambda s, acc, e: s.silu(acc), False, "float32", silu),
        (lambda s, acc, e: s.silu(s.add(acc, e)), True, "float32", lambda x: silu(x + 1)),
        (lambda s, acc, e: s.gt(acc, s.const(-np.inf, FLOAT)), False, "bool", lambda x: x > -np.inf),
        (
            lambda s, acc, e: s.cast(s.min(acc, s.const(-0.5, FLOAT)), Type.half_type), False, "float16",
            lambda x: np.minimum(x, -0.5),
        ),
        (lambda s, acc, e: s.cast(acc, Type.double_type), False, "float64", lambda x: x),
    ],
)  # fmt: skip
def test_functions_dtypes_and_special_values(monkeypatch, ceiling, function, fast_math, dtype, expected) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    a, b = product(26, 50, 3)
    a[:, 1:], b[0] = 0, 1
    a[3, 0], a[4, 0], a[5, 0], a[6, 0] = np.nan, np.inf, -np.inf, -0.0
    out = np.zeros((26, 50), dtype)
    problem = gemm_problem(a, b, True)
    epilogue = epilogue_of(function, "scalar", fast_math=fast_math)
    arrays = {"x": a, "w": GemmPacked().pack_weights(problem, b), "out": out, "e0": np.ones(1, np.float32)}
    run_plan(GemmPacked().plan(problem, epilogue), arrays)
    with np.errstate(all="ignore"):
        wanted = np.broadcast_to(expected(a[:, :1]), out.shape)
    known = np.isfinite(wanted) | np.isnan(wanted) | (wanted > 0)  # silu(-inf) is 0 or NaN
    np.testing.assert_allclose(out[known], wanted[known].astype(dtype), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("gap", [0, 24])
@pytest.mark.parametrize("n", [24, 40])
def test_images_that_lie_apart(kernel: int, gap: int, n: int) -> None:
    """Rows that do not grow steadily from one image to the next."""
    rng = np.random.default_rng(gap + kernel)
    pads = (kernel // 2,) * 2
    out = np.full((3, 7 * 5 * n + gap), np.nan, np.float32)
    strides = (out.shape[1], n)
    problem = ConvProblem(
        3, 10, n, (7, 5), (kernel,) * 2, pads_begin=pads, pads_end=pads, out_strides=strides, groups=2
    )
    x = rng.standard_normal((3, 7, 5, 10)).astype(np.float32)
    w = rng.standard_normal((n, 5, kernel, kernel)).astype(np.float32)
    e = full_epilogue_arrays(rng, (3, 7, 5), n, "float32")
    packed = ConvDirect().pack_weights(problem, w)
    run_plan(ConvDirect().plan(problem, full_epilogue("float32")), {"x": x, "w": packed, "out": out, **e})
    got = out[:, : 7 * 5 * n].reshape(3, 7, 5, n)
    np.testing.assert_allclose(got, apply_full_epilogue(convolve(problem, x, w), e), rtol=1e-4, atol=1e-4)
    assert np.isnan(out[:, 7 * 5 * n :]).all()


def test_one_kernel_for_equal_epilogues() -> None:
    """Products and convolutions with the same epilogue call the same tile."""
    epilogue = full_epilogue("float32")
    a, b = product(40, 64, 8)
    gemm = GemmPacked().plan(gemm_problem(a, b, True), epilogue).kernels
    conv = ConvDirect().plan(ConvProblem(1, 8, 128, (9, 9), (1, 1), groups=2), epilogue).kernels
    shared = epilogue_source(tile_for(element_types("float32")), epilogue, True, 64, True)
    assert shared in gemm and shared in conv


@pytest.mark.parametrize("line", ["v = add(acc, acc) + 1", "v = nothing(acc)", "v += acc", "v = other", "neg(1.0)"])
def test_text_that_cannot_be_inlined(line: str) -> None:
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f")
    with pytest.raises(TypingError, match="inline"):
        inline(ir.IRBuilder(function.append_basic_block()), [line], {})
