"""Winograd convolution on matrix tiles: AMX's, and vector code that emulates them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction.conv import ConvDirect
from mgx_numba.codegen.cpu.contraction.solver import UnsuitedWeights
from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.contraction.winograd.form import Form
from mgx_numba.codegen.cpu.contraction.winograd.winograd_amx import ConvWinogradAmx
from mgx_numba.codegen.cpu.microkernels.tile_table import matrix_tile
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from tests.values import element_strides

from ..features import features
from .contracting import GuardedPages, convolve, needs_page_protection, run_conv, run_plan
from .test_contraction_conv import same

SOLVER = ConvWinogradAmx(Form(2, 3, True))
TOLERANCE = 3e-5
"""Error relative to the largest result: 16-bit numbers, and sums of four."""
FORMS = [host.EMULATED_TILES, *([""] if matrix_tile(element_types("float32")) is not None else [])]
pytestmark = pytest.mark.skipif(host.host().vector_bits < 512, reason="the CPU has no AVX-512")


form = features(FORMS, autouse=True)


def computed(problem: ConvProblem, x: np.ndarray, w: np.ndarray, **how: Any) -> np.ndarray:
    out = np.full((problem.batch, *problem.out_lens, problem.out_channels), 77, np.float32)
    arrays = {"x": x, "w": SOLVER.pack_weights(problem, w), "out": out}
    run_plan(SOLVER.plan(problem, threads=2, **how), arrays)
    return out


def random_arrays(problem: ConvProblem) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    lens = (problem.batch, *problem.in_lens, problem.in_channels)
    return tuple(rng.standard_normal(n).astype(np.float32) for n in (lens, problem.weight_lens))  # type: ignore[return-value]


@pytest.mark.parametrize("channels", [(32, 1), (64, 33), (96, 100), (32, 16)], ids=str)
def test_sizes(channels: tuple[int, int]) -> None:
    for lens in ((1, 1), (4, 4), (5, 11), (19, 3), (14, 14)):
        for pads, threads, gap in (((1, 1), 1, 0), ((2, 1), 3, 7)):
            problem = ConvProblem(2, *channels, lens, (3, 3), pads_begin=pads, pads_end=(1, 1), fast_math=True)
            assert run_conv(SOLVER, problem, 8, threads, gap) < TOLERANCE


def test_groups_and_crops() -> None:
    for threads, gap in ((1, 0), (3, 9)):
        assert run_conv(SOLVER, same(64, 70, 13, groups=2, fast_math=True), 8, threads, gap) < TOLERANCE
    for begin, end in (((0, 0), (0, 0)), ((-1, 2), (1, -1))):
        problem = ConvProblem(1, 32, 20, (9, 10), (3, 3), pads_begin=begin, pads_end=end, fast_math=True)
        assert run_conv(SOLVER, problem, 9) < TOLERANCE


def test_many_channels_and_blockings_of_tuning() -> None:
    problem = same(320, 170, 12, fast_math=True)
    assert run_conv(SOLVER, problem, 10, 2) < TOLERANCE
    x, w = random_arrays(problem)
    expected = convolve(problem, x, w)
    for blocking in SOLVER.blockings(problem, 2):
        found = computed(problem, x, w, blocking=blocking)
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("exponent", [-64, -75, -120, -140])
def test_small_numbers_keep_their_bits(exponent: int) -> None:
    """A tile of inputs has denormal low parts, beside normal tiles; for the last exponents the inputs are denormal."""
    problem = same(32, 24, 8, fast_math=True)
    x, w = random_arrays(problem)
    x[0, :4, :, :] *= np.float32(2.0**exponent)
    x[0, 4:] = 0
    expected = convolve(problem, x, w)
    found = computed(problem, x, w)
    few_bits = 2.0**-149 if exponent < -120 else 0.0
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max() + few_bits
    assert not found[0, 6:].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_reaches_only_the_tiles_that_read_it(value: float) -> None:
    problem = same(32, 40, 12, fast_math=True)
    x, w = random_arrays(problem)
    x[0, 1, 1, 3] = value
    out = computed(problem, x, w)
    assert not np.isfinite(out[0, :3, :3]).any()
    assert np.isfinite(out[0, 4:]).all() and np.isfinite(out[0, :, 4:]).all()
    x[0, 1, 1, 3] = np.uint32(0xFFFFFFFF).view(np.float32)
    assert np.isnan(computed(problem, x, w)[0, :3, :3]).all()


@needs_page_protection
def test_nothing_past_the_end_is_read() -> None:
    problem, pages = same(32, 21, 7, fast_math=True), GuardedPages()
    room, w = random_arrays(replace(problem, in_channels=64, x_strides=(), out_strides=()))
    x, w = pages.place(room)[..., 32:], w[:, :32]
    problem = replace(problem, x_strides=element_strides(x)[:-1])
    out, packed = pages.place(np.zeros((1, 7, 7, 21), np.float32)), pages.place(SOLVER.pack_weights(problem, w))
    run_plan(SOLVER.plan(problem), {"x": x, "w": packed, "out": out}, pages)
    expected = convolve(problem, np.ascontiguousarray(x), w)
    assert np.abs(out - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_what_is_refused_and_what_is_taken() -> None:
    large = same(128, 128, 64, fast_math=True)
    assert select(large, 2).name == SOLVER.name
    assert select(large, 2, room=0).name != SOLVER.name
    assert "fast_math" in (SOLVER.refusal(replace(large, fast_math=False)) or "")
    assert "multiple of 32" in (SOLVER.refusal(same(48, 8, 8, fast_math=True)) or "")
    assert "stride" in (SOLVER.refusal(same(64, 8, 8, stride=(2, 2), fast_math=True)) or "")
    bfloat16 = element_types("float32 bfloat16 float32 float32")
    assert "bfloat16" in (SOLVER.refusal(replace(large, types=bfloat16)) or "")
    assert SOLVER.packing_growth(large) > 128 * 128 * 4 * 6
    assert ConvDirect().packing_growth(large) == 0


@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38, 1e-30])
def test_filters_that_cannot_be_split(value: float) -> None:
    problem = same(32, 8, 8, fast_math=True)
    _, w = random_arrays(problem)
    w[3] = value
    with pytest.raises(UnsuitedWeights):
        SOLVER.pack_weights(problem, w)
