"""Winograd convolution of 8-bit integers in 16 bits: exact, on CPUs without a four-term dot product instruction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgx_numba.codegen.cpu.contraction.solvers import select
from mgx_numba.codegen.cpu.contraction.winograd.form import Form
from mgx_numba.codegen.cpu.contraction.winograd.solver import ConvWinogradInt8

from ..features import ARM, features
from .contracting import GuardedPages, needs_page_protection
from .test_contraction_conv_int8 import check, square

SOLVERS = [ConvWinogradInt8(Form(2, 3, stored)) for stored in (False, True)]
FORMS = ("-avx512vnni,-avxvnni", "avx2,-avxvnni", "sse")
NO_DOT = "-i8mm,-dotprod" if ARM else FORMS[1]
"""Features without a dot product of four terms."""


form = features(FORMS, arm=(NO_DOT,))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_sizes(form: str, solver: ConvWinogradInt8, dtype: str) -> None:
    for channels, outputs, size in ((4, 1, 1), (12, 17, 2), (64, 40, 7), (20, 33, 8), (260, 8, 5)):
        for threads in (1, 3):
            check(square(channels, outputs, size, 3, dtype), threads, solver=solver)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_images_groups_pads_and_crops(form: str, solver: ConvWinogradInt8) -> None:
    grouped = square(24, 38, 6, 3, groups=2)
    for pads in ((0, 0), (2, -1), (-1, 2)):
        check(replace(grouped, batch=2, pads_begin=pads, pads_end=pads[::-1], out_strides=()), 2, solver=solver)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_extremes(form: str, solver: ConvWinogradInt8) -> None:
    """The largest inputs and filters of every combination of signs at the points, in as many channels as are taken."""
    for dtype, channels in (("uint8", 1824), ("int8", 1824)):
        problem = square(channels, 4, 4, 3, dtype)
        limits = np.iinfo(dtype)
        for low, high in ((limits.max, limits.max), (limits.min, limits.max), (limits.min, limits.min)):
            x = np.full((1, 4, 4, channels), low, dtype)
            x[:, ::2, 1::2], x[:, 1::2, ::2] = high, high
            for weight in (-128, 127):
                w = np.full(problem.weight_lens, weight, np.int8)
                w[1:, :, 1], w[2:, :, :, 1], w[3, :, ::2, ::2] = -1 - weight, -1 - weight, weight
                check(problem, solver=solver, arrays=(x, w))


@needs_page_protection
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_nothing_past_the_end_is_read(form: str, solver: ConvWinogradInt8) -> None:
    for channels in (4, 12, 32):
        check(square(channels, 17, 5, 3), pages=GuardedPages(), solver=solver)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.name)
def test_blockings_of_tuning_compute_the_same(form: str, solver: ConvWinogradInt8) -> None:
    problem = square(160, 70, 8, 3)
    for blocking in solver.blockings(problem, 2):
        check(problem, 2, blocking=blocking, solver=solver)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = SOLVERS[0]
    monkeypatch.setenv("MGX_CPU_FEATURES", NO_DOT)
    assert "more than" in (solver.refusal(square(1828, 4, 4, 3)) or "")
    assert "multiple of 4" in (solver.refusal(square(6, 4, 4, 3)) or "")
    assert "stride" in (solver.refusal(square(8, 4, 4, 3, stride=(2, 2))) or "")
    assert select(square(64, 64, 28, 3)).name.startswith("conv_winograd_2x2")
    assert select(square(64, 64, 28, 1)).name in ("conv_int8", "conv_int8_residual")
    monkeypatch.setenv("MGX_CPU_FEATURES", "avx512")
    if select(square(64, 64, 28, 3)).name == "conv_int8":
        assert "four products" in (solver.refusal(square(64, 64, 28, 3)) or "")
