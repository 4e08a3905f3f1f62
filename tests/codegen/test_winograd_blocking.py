"""Tasks of Winograd convolutions: the choice skips no blocking that is cheaper."""

from __future__ import annotations

import math
import random

import pytest

from mgx_numba.codegen.cpu.contraction.winograd import winograd_blocking
from mgx_numba.codegen.cpu.contraction.winograd.form import Form
from mgx_numba.codegen.cpu.machine import machine
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.convolution import ConvProblem


def cycles(form: Form, problem: ConvProblem, threads: int, tiles: int, panels: int) -> float:
    """Estimated cycles of tasks of some tiles and panels, without a bound."""
    tile = tile_for(problem.types)
    cost = winograd_blocking._Cost(winograd_blocking._WholeCost(tile, form, problem, machine()), tiles)
    every = -(-problem.group_out // tile.columns)
    columns = -(-every // panels)
    rows = problem.groups * -(-problem.batch * math.prod(winograd_blocking.tiles_of(form, problem)) // tiles)
    claim = -(-rows * columns // threads)
    inputs = min(rows, -(-claim // columns) + (claim % columns != 0 and claim > columns))
    reading = cost.reading(claim, panels)
    assert reading >= 0 and cost.inputs(panels) >= cost.transform
    return inputs * cost.inputs(panels) + (claim * cost.task(panels) + reading) * every / (columns * panels)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("out", [2, 4])
def test_no_blocking_is_cheaper_than_the_best(out: int, stored: bool) -> None:
    form, rng = Form(out, 3, stored), random.Random(out)
    for _ in range(40):
        groups, threads = rng.choice([1, 1, 2]), rng.choice([1, 2, 8])
        channels = [groups * rng.choice([3, 16, 50, 128, 256]) for _ in range(2)]
        lens = rng.choice([4, 7, 14, 57, 112]), rng.choice([4, 9, 28, 56])
        batch = rng.choice([1, 2, 8])
        problem = ConvProblem(batch, *channels, lens, (3, 3), pads_begin=(1, 1), pads_end=(1, 1), groups=groups)
        block, least = winograd_blocking.best_block(form, problem, threads)
        assert least == pytest.approx(cycles(form, problem, threads, block.tiles, block.panels))
        tiles = batch * math.prod(winograd_blocking.tiles_of(form, problem))
        for count in (4, 8, 12, 16, 24, 36, 48, 96):
            for panels in (1, block.panels):
                assert cycles(form, problem, threads, min(tiles, count), panels) >= least * (1 - 1e-12)
