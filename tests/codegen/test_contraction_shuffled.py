"""Grouped convolutions that read shuffled channels, against grouped convolutions of shuffled arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.blocking import Blocking
from mgx_numba.codegen.cpu.contraction.conv import ConvDirect
from mgx_numba.codegen.cpu.contraction.solvers import CONV_SOLVERS, select
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.errors import ShapeError

from .contracting import GuardedPages, convolve, needs_page_protection, run_conv, run_plan

TOLERANCE = 3e-5


def shuffled(
    lens: tuple[int, ...], group_in: int, group_out: int, groups: int, turns: int, batch: int = 1
) -> ConvProblem:
    ones = (1,) * len(lens)
    return ConvProblem(batch, groups * group_in, groups * group_out, lens, ones, groups=groups, shuffled=turns)


@pytest.mark.parametrize("ceiling", ["", "x86-64-v3"])
@pytest.mark.parametrize(
    ("group_in", "group_out", "groups", "turns"),
    [(17, 34, 4, 4), (34, 17, 4, 2), (6, 70, 3, 3), (40, 33, 2, 5), (3, 1, 6, 9), (1, 2, 4, 4), (66, 8, 1, 3)],
)
def test_runs_of_any_lengths(
    monkeypatch: pytest.MonkeyPatch, ceiling: str, group_in: int, group_out: int, groups: int, turns: int
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", ceiling)
    for lens, batch, gap in (((5, 7), 1, 0), ((1,), 2, 3), ((29,), 2, 0)):
        problem = shuffled(lens, group_in, group_out, groups, turns, batch)
        assert run_conv(ConvDirect(), problem, 1, 2, gap) < TOLERANCE
    doubles = dataclasses.replace(problem, types=element_types("float64"))
    assert run_conv(ConvDirect(), doubles, 1) < 1e-12


def test_any_blocking() -> None:
    rng = np.random.default_rng(2)
    problem = shuffled((6, 5), 34, 40, 4, 4)
    x, w = rng.standard_normal((1, 6, 5, 136), np.float32), rng.standard_normal(problem.weight_lens, np.float32)
    packed = ConvDirect().pack_weights(problem, w)
    for blocking in (Blocking(7, 1, 1, 8), Blocking(30, 9, 1, 1000, 2)):
        out = np.zeros((1, 6, 5, 160), np.float32)
        run_plan(ConvDirect().plan(problem, blocking=blocking), {"x": x, "w": packed, "out": out})
        np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-4, atol=1e-4)


def test_not_a_number_reaches_only_the_group_that_reads_it() -> None:
    problem = shuffled((4, 4), 9, 8, 2, 3)
    for value in (np.nan, np.inf):
        x, w = np.ones((1, 4, 4, 18), np.float32), np.ones(problem.weight_lens, np.float32)
        x[0, 1, 2, 5] = value  # channel 3 * 5 of the convolution
        out = np.zeros((1, 4, 4, 16), np.float32)
        run_plan(ConvDirect().plan(problem), {"x": x, "w": ConvDirect().pack_weights(problem, w), "out": out})
        odd = ~np.isfinite(out)
        assert odd[0, 1, 2, 8:].all()
        assert odd.sum() == 8


@needs_page_protection
def test_nothing_is_read_past_the_input() -> None:
    problem = shuffled((3, 5), 5, 20, 4, 4)
    pages, rng = GuardedPages(), np.random.default_rng(3)
    x = pages.place(rng.standard_normal((1, 3, 5, 20), np.float32))
    w = rng.standard_normal(problem.weight_lens, np.float32)
    out = np.zeros((1, 3, 5, 80), np.float32)
    run_plan(ConvDirect().plan(problem), {"x": x, "w": ConvDirect().pack_weights(problem, w), "out": out})
    np.testing.assert_allclose(out, convolve(problem, x, w), rtol=1e-4, atol=1e-4)


def test_what_is_refused() -> None:
    problem = shuffled((5, 7), 8, 8, 4, 4)
    assert select(problem).name == "conv_direct"
    assert [s.name for s in CONV_SOLVERS if s.refusal(problem) is None] == ["conv_direct"]
    for other in (
        dataclasses.replace(problem, stride=(2, 2), out_strides=()),
        dataclasses.replace(problem, x_strides=(5000, 300, 32)),
        shuffled((5, 7), 4000, 8, 4, 4),
        shuffled((5, 7), 20, 8, 4, 20),
    ):
        assert "shuffled" in str(ConvDirect().refusal(other))
    with pytest.raises(ShapeError, match="32 channels do not divide into 5 groups"):
        dataclasses.replace(problem, shuffled=5)
