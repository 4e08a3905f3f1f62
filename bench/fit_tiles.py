"""Fit the cost model of warpgroup tiles to measured times.

    python -m bench.fit_tiles [--steps N] [--data FILE]

The data are what `bench.gpu_tiles` measures. Prints the regret (time of the chosen tile over that of the fastest) with
the constants of `wgmma_tiles` as they are, and constants that random steps found better. With ``--steps 0`` it only
reports.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np

from bench.random_problems import Product
from mgx_numba.codegen.gpu.contraction import wgmma_tiles
from mgx_numba.codegen.gpu.contraction.wgmma import tile_question
from mgx_numba.codegen.gpu.contraction.wgmma_tiles import TileQuestion, WarpgroupTile

DATA = Path(__file__).parent / "data" / "gpu_tiles.json"
CORES, CYCLES = 132, 1755
"""Multiprocessors of an H200, and its cycles per microsecond under load."""
SLICE = 64
"""Elements of 16 bits along K in a ring stage."""
CONSTANTS = (
    "MULTIPLIES PAIRED IN_TURNS DELIVERY DISTINCT GATHERING BESIDE_PIXELS LEAST_SLICE BEGINNING STORING ACTIVATING"
    " READING SHORT_ROWS STREAM LAUNCH PAIRING PAIRING_CONSTANTS ADDING LATENCY OUTSIDE STARTING"
).split()
LARGEST, ACCURACY = 1.5, 0.03
"""Regret that counts at most, so that no single problem rules; and the weight of the estimates' own accuracy, by which
other solvers are compared."""
_TILE = re.compile(r"(\d+)x(\d+) s(\d+) b(\d+)(?: c(\d+)a(\d+))?(?: p(\d+))? k(\d+)")


@dataclass(frozen=True)
class Measured:
    """The times (us) of a problem's tiles and splits; ``kind`` groups problems in the report."""

    kind: str
    name: str
    question: TileQuestion
    times: dict[tuple[WarpgroupTile, int], float]

    @property
    def estimates(self) -> dict[tuple[WarpgroupTile, int], float]:
        return {(t, s): wgmma_tiles.tile_cycles(t, s, self.question, CORES) for t, s in self.times}


def read(path: Path = DATA) -> list[Measured]:
    """Return the measured problems of a file."""
    return list(_read(json.loads(path.read_text())["epilogues"]))


def _read(epilogues: dict[str, dict[str, dict[str, float]]]) -> Iterator[Measured]:
    for epilogue, problems in epilogues.items():
        for name, times in problems.items():
            question = _question(name, epilogue)
            applicable = {(t, s) for _, t, s in wgmma_tiles.weighed_tiles(question, CORES)}
            found = {_tile(label): us for label, us in times.items()}
            found = {tile: us for tile, us in found.items() if tile in applicable}
            if len(found) > 1:
                yield Measured(epilogue or name.split("/")[0][:4] * ("conv" in name), name, question, found)


def _tile(label: str) -> tuple[WarpgroupTile, int]:
    found = _TILE.match(label)
    assert found is not None, label
    *tile, splits = (int(n or 1) for n in found.groups())
    return WarpgroupTile(*tile), splits


def _question(name: str, epilogue: str) -> TileQuestion:
    numbers = [int(n) for n in re.findall(r"\d+", name.replace("^2", ""))]
    if name.startswith("conv"):
        kernel, stride, batch, side, channels, out = numbers
        pixels = (side + 2 * (kernel // 2) - kernel) // stride + 1
        slices = kernel * kernel * -(-channels // SLICE)
        return TileQuestion(batch * pixels**2, out, slices, 1, taps=kernel * kernel, constant=True)
    rows, columns, depth = numbers
    right = name.partition(" ")[2]
    if right:
        return tile_question(Product(rows, columns, depth, right).contraction(padded=True))
    reads, activates = epilogue == "residual", epilogue in ("gelu", "silu")
    alignment = max(16, gcd(128, 2 * depth))  # bytes, of the left operand's rows; shorter ones are copied
    return TileQuestion(
        rows, columns, -(-depth // SLICE), 1, reads=reads, constant=True, activates=activates, left_alignment=alignment
    )


def regrets(problems: list[Measured]) -> dict[str, list[float]]:
    """Return the regret of each problem, by kind."""
    found: dict[str, list[float]] = {}
    for problem in problems:
        estimates = problem.estimates
        chosen = min(estimates, key=estimates.__getitem__)
        found.setdefault(problem.kind or "products", []).append(problem.times[chosen] / min(problem.times.values()))
    return found


def regret_of(problems: list[Measured]) -> float:
    every = [min(r, LARGEST) - 1 for kind in regrets(problems).values() for r in kind]
    errors = []
    for problem in problems:
        best = min(problem.times, key=problem.times.__getitem__)
        errors.append(abs(math.log(problem.estimates[best] / CYCLES / problem.times[best])))
    return float(np.mean(every) + ACCURACY * np.mean(errors))


def fit(problems: list[Measured], steps: int, seed: int = 0) -> dict[str, float]:
    """Return constants with a smaller loss than the present ones, and leave them in `wgmma_tiles`."""
    rng = random.Random(seed)
    best, loss = {name: float(getattr(wgmma_tiles, name)) for name in CONSTANTS}, regret_of(problems)
    for step in range(steps):
        tried = dict(best)
        for name in rng.sample(CONSTANTS, rng.choice((1, 1, 2))):
            tried[name] *= math.exp(rng.gauss(0, 0.15 if step < steps * 2 // 3 else 0.05))
        for name, value in tried.items():
            setattr(wgmma_tiles, name, value)
        if (found := regret_of(problems)) < loss:
            best, loss = tried, found
    for name, value in best.items():
        setattr(wgmma_tiles, name, value)
    return best


def _report(problems: list[Measured]) -> None:
    for kind, found in regrets(problems).items():
        mean, most = np.mean(found) - 1, max(found) - 1
        print(f"{kind:10} {len(found):3} problems, regret {mean:.1%} in the mean, {most:.0%} at most")


def main() -> int:
    """Report, fit, and report again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="random steps")
    parser.add_argument("--data", type=Path, default=DATA, help="file of measured times")
    given = parser.parse_args()
    problems = read(given.data)
    _report(problems)
    if given.steps:
        print(", ".join(f"{name} {value:.4g}" for name, value in fit(problems, given.steps).items()))
        _report(problems)
    return 0


if __name__ == "__main__":
    sys.exit(main())
