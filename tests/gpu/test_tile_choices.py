"""The cost model of warpgroup tiles against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from bench import fit_tiles
from bench.random_problems import Convolution, Product
from mgx_numba.codegen.gpu.architecture import ENVIRONMENT
from mgx_numba.codegen.gpu.contraction.solvers import SOLVER_SET, Warpgroups
from mgx_numba.codegen.gpu.machine import H200, planning_for


def test_chosen_tiles_are_near_the_fastest_that_were_measured() -> None:
    """Of each kind of epilogue, and of convolutions; see `bench.fit_tiles`."""
    found = fit_tiles.regrets(fit_tiles.read())
    assert {"products", "conv", "gelu", "silu", "residual", "odd sizes", "random products"} == set(found)
    assert all(np.mean(regrets) < 1.07 for regrets in found.values())


def test_fitting_finds_back_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = fit_tiles.read()[:12]
    for name in fit_tiles.CONSTANTS:
        monkeypatch.setattr(fit_tiles.wgmma_tiles, name, getattr(fit_tiles.wgmma_tiles, name))
    monkeypatch.setattr(fit_tiles.wgmma_tiles, "STORING", 1.0)
    before = fit_tiles.regret_of(problems)
    fit_tiles.fit(problems, 40)
    assert fit_tiles.regret_of(problems) < before


@pytest.mark.parametrize("right", ["constant", "rows"])
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 12, 15, 16])
def test_products_of_few_terms_stay_on_tensor_cores(depth: int, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, H200.architecture)
    with planning_for(H200):
        for rows, columns in ((64, 16), (1000, 64), (34416, 138), (5000, 5000)):
            contraction = Product(rows, columns, depth, right).contraction()
            assert SOLVER_SET.own_candidates(contraction)[0].solver.name in ("warpgroup", "tensor", "tensor_narrow")


CHANNELS_APART = (
    (Convolution(8, (208, 50), 216, 832, (3, 3), 1, 1, 1), {(128, 256, 2, 1): 556, (128, 224, 1, 1): 612}),
    (Convolution(16, (128, 64), 216, 256, (5, 5), 2, 1, 1), {(128, 256, 2, 1): 138, (128, 256, 1, 1): 184}),
    (Convolution(16, (64, 64), 232, 192, (1, 3), 1, 1, 1), {(192, 96, 1, 2): 38.9, (128, 192, 1, 1): 45.1}),
    (Convolution(8, (64, 64), 248, 71, (3, 3), 1, 1, 1), {(256, 96, 1, 1): 43.9, (64, 96, 1, 1): 59.5}),
    (Convolution(8, (128, 128), 152, 40, (3, 3), 2, 2, 1), {(256, 64, 1, 1): 25.8, (128, 64, 1, 1): 31.1}),
    (Convolution(64, (19, 19), 152, 64, (3, 3), 1, 1, 1), {(192, 64, 1, 1): 25.5, (64, 64, 1, 1): 38.3}),
    (Convolution(32, (136, 136), 272, 64, (3, 3), 1, 1, 1), {(256, 64, 1, 1): 508, (128, 64, 1, 1): 589}),
    (Convolution(8, (80, 80), 128, 488, (5, 5), 1, 1, 1), {(192, 128, 1, 1): 242, (64, 256, 1, 1): 295}),
)
"""Convolutions, most of pixels that are no whole lines; and the times (us) on an H200 of the fastest tile (rows,
columns, blocks of a cluster along both), and of one that earlier estimates chose."""


@pytest.mark.parametrize(("problem", "times"), CHANNELS_APART, ids=lambda own: getattr(own, "name", ""))
def test_tiles_of_convolutions_of_pixels_within_lines(
    problem: Convolution, times: dict[tuple[int, int, int, int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, H200.architecture)
    with planning_for(H200):
        tile = Warpgroups().chosen(problem.contraction())
    assert (tile.rows, tile.columns, tile.cluster, tile.across) == min(times, key=lambda own: times[own])


@pytest.mark.parametrize(
    ("problem", "solver"),
    [
        (Product(2, 15070, 104, "constant"), "warpgroup"),  # 5.3 us by few_rows, 3.0
        (Product(2, 8872, 16, "constant"), "warpgroup"),  # 3.3 us by few_rows, 1.7
        (Product(1, 50257, 768, "constant"), "few_rows"),
        (Convolution(8, (128, 128), 291, 291, (3, 3), 1, 1, 291), "depthwise_patch"),  # 155 us by depthwise, 130
        (Convolution(2, (124, 124), 78, 78, (5, 5), 1, 1, 78), "depthwise_patch"),  # 25 us by depthwise, 12
        (Convolution(1, (57, 57), 157, 157, (3, 3), 1, 2, 157), "depthwise"),
        (Convolution(1, (88, 88), 8, 112, (1, 7), 1, 2, 1), "patch"),  # 6.0 us by tensor, 5.2
    ],
    ids=lambda own: getattr(own, "name", ""),
)
def test_solvers_that_were_faster(problem: Product | Convolution, solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, H200.architecture)
    with planning_for(H200):
        assert SOLVER_SET.own_candidates(problem.contraction(padded=True))[0].solver.name == solver
