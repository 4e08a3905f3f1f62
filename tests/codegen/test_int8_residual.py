"""Products of 8-bit integers by ``vpmaddubsw``: exact, with residuals of the weights whose products in pairs would not
fit 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.conv_int8 import ConvInt8Residual, join_groups, join_taps
from mgx_numba.codegen.cpu.contraction.gemm_int8 import PAIR_LIMIT, ROOM, GemmInt8Residual, split_weights
from mgx_numba.codegen.cpu.contraction.solver import UnsuitedWeights
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.microkernels.tile_table import residual_tile
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types

from ..features import ARM, choosing_for, features
from .contracting import GuardedPages, needs_page_protection
from .test_contraction_conv_int8 import check, random_arrays, square
from .test_contraction_int8 import multiply, pair, problem_of

pytestmark = pytest.mark.skipif(ARM, reason="vpmaddubsw is an instruction of x86-64")
FORMS = ("-avx512vnni,-avxvnni", "avx2,-avxvnni")
"""Enabled CPU features: no VNNI, with vectors of 512 and of 256 bits."""
form = features(FORMS)
GEMM, CONV = GemmInt8Residual(), ConvInt8Residual()
TYPES = ("uint8", "int8")


def mostly_small(weights: np.ndarray) -> np.ndarray:
    """Return weights ``[..., k, n]`` whose pairs fit 16 bits, but for as many words of four k as a panel has room for,
    in which a third of the weights are as large as can be."""
    rng = np.random.default_rng(0)
    *outer, k, n = weights.shape
    if k < 4 * ROOM:
        return weights // 3
    small = (weights // 3).reshape(-1, k, n)
    for matrix in small:
        for word in rng.choice(k // 4, k // (4 * ROOM), replace=False):
            part = matrix[4 * word : 4 * word + 4]
            part[rng.random(part.shape) < 0.3] = rng.choice(np.array([-128, 127], np.int8))
            part[:2, 0] = 127, 127
            part[2:, -1] = -128, -128
    return small.reshape(*outer, k, n)


def products(m: int, n: int, k: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = pair(m, n, k, dtype)
    a[:, ::3] = np.iinfo(dtype).max
    return a, mostly_small(b)


def of_convolution(weights: np.ndarray) -> np.ndarray:
    """Return `mostly_small` of weights ``[out, in, *kernel]``, whose words are along the input channels."""
    return np.moveaxis(mostly_small(np.moveaxis(weights, (1, 0), (-2, -1))), (-2, -1), (1, 0))


@pytest.mark.parametrize("dtype", TYPES)
def test_odd_sizes(form: str, dtype: str) -> None:
    for m in (1, 2, 3, 5, 13):
        for n in (1, 15, 17, 49, 100):
            for k in (0, 1, 2, 3, 4, 5, 63, 130):
                multiply(*products(m, n, k, dtype), solver=GEMM)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_weights_do_not_saturate(form: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    for first, second in ((127, 127), (-128, -128), (-128, 127), (127, 2), (-127, -2), (-128, 0), (1, 127)):
        for left in (limits.min, limits.max):
            a, b = np.full((7, 256), left, dtype), np.zeros((256, 50), np.int8)
            b[40], b[41], b[254, 49], b[255, 49] = first, second, first, second
            multiply(a, b, solver=GEMM)


def test_residuals_are_written_where_pairs_do_not_fit() -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(-128, 128, (9, 40)).astype(np.int8)
    fitting, residuals = split_weights(weights)
    assert residuals is not None and residuals.any()
    np.testing.assert_array_equal(fitting.astype(int) + residuals, weights)
    for part in (fitting, residuals):
        sums = part[:-1:2].astype(int) + part[1::2]
        assert np.abs(sums).max() <= PAIR_LIMIT
    assert split_weights(weights // 2)[1] is None
    assert split_weights(weights[:1])[1] is None and split_weights(weights[:, :0])[1] is None


@pytest.mark.parametrize("dtype", TYPES)
def test_steps_of_depth_blocks_and_threads(form: str, dtype: str) -> None:
    multiply(*products(40, 130, 9001, dtype), threads=2, solver=GEMM)
    multiply(*products(300, 70, 92, dtype), threads=3, solver=GEMM)


def test_blockings_of_tuning_compute_the_same(form: str) -> None:
    problem = square(160, 70, 8, 3)
    x, w = random_arrays(problem)
    arrays = (x, of_convolution(w))
    for blocking in CONV.blockings(problem, 2):
        check(problem, 2, blocking=blocking, solver=CONV, arrays=arrays)


@needs_page_protection
def test_nothing_past_the_end_is_read(form: str) -> None:
    for dtype in TYPES:
        for k in (1, 6, 8, 640):
            multiply(*products(5, 37, k, dtype), pages=GuardedPages(), solver=GEMM)


@pytest.mark.parametrize("dtype", TYPES)
def test_convolutions(form: str, dtype: str) -> None:
    types = element_types(f"{dtype} int8 int32 int32")
    problems = [
        square(3, 64, 23, 7, dtype, stride=(2, 2)), square(64, 64, 9, 1, dtype), square(96, 40, 7, 3, dtype),
        square(4200, 17, 3, 1, dtype),  # steps of a tap
        square(64, 20, 11, 9, dtype),  # more taps than a table holds
        square(600, 40, 5, 3, dtype),  # steps of taps
        square(48, 40, 6, 3, dtype, groups=2), square(24, 36, 6, 3, dtype, groups=4),
        ConvProblem(2, 3, 20, (19, 23), (7, 7), (2, 2), types=types),  # joined taps
        square(160, 70, 8, 3, dtype),  # inner tiles, which read no padding
        ConvProblem(2, 16, 33, (9,), (3,), dilation=(2,), types=types),
    ]  # fmt: skip
    for problem in problems:
        x, w = random_arrays(problem)
        w = of_convolution(w)
        if x.size:
            x.reshape(-1)[::2] = np.iinfo(dtype).max
        for threads in (1, 2):
            check(problem, threads, solver=CONV, arrays=(x, w))


def test_many_large_weights_are_refused(form: str) -> None:
    a, b = pair(3, 40, 256, "uint8")
    with pytest.raises(UnsuitedWeights, match="do not fit 16 bits"):
        GEMM.pack_weights(problem_of(a, b), b)
    problem = square(64, 20, 5, 3)
    with pytest.raises(UnsuitedWeights, match="do not fit 16 bits"):
        CONV.pack_weights(problem, np.full(problem.weight_lens, 127, np.int8))
    b[:] = 0
    b[: 256 // ROOM] = 127
    multiply(a, b, solver=GEMM)


def test_cpus_with_products_of_four_do_without() -> None:
    types = element_types("uint8 int8 int32 int32")
    problem = square(64, 64, 14, 1)
    with choosing_for("x86-64-v4", frozenset({"avx512vnni"})):
        assert residual_tile(types) is None and "four products" in (CONV.refusal(problem) or "")
        assert select(problem).name == "conv_int8"
    for level in ("x86-64-v3", "x86-64-v4"):
        with choosing_for(level):
            assert CONV.refusal(problem) is None and residual_tile(types) is not None
            assert select(problem).name == "conv_int8_residual"
            assert select(problem, unsuited=["conv_int8_residual"]).name == "conv_int8"
            assert join_taps(join_groups(problem, CONV.tile(types)), CONV.tile(types)) is None
