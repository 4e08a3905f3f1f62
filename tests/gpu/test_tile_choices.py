"""The cost model of warpgroup tiles against measured times."""

from __future__ import annotations

import numpy as np
import pytest

from bench import fit_tiles
from bench.random_problems import Product
from mgx_numba.codegen.gpu.architecture import ENVIRONMENT
from mgx_numba.codegen.gpu.contraction.solvers import SOLVER_SET
from mgx_numba.codegen.gpu.machine import H200, planning_for


def test_chosen_tiles_are_near_the_fastest_that_were_measured() -> None:
    """Of each kind of epilogue, and of convolutions; see `bench.fit_tiles`."""
    found = fit_tiles.regrets(fit_tiles.read())
    assert {"products", "conv", "gelu", "silu", "residual"} == set(found)
    assert all(np.mean(regrets) < 1.045 for regrets in found.values())


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
