"""Fit the CPU's cost model to measured times, and report what its choices of solvers lose on each recorded machine.

    python -m bench.fit_choices [--steps N] [--data FOLDER]

The data are what ``bench.choices --solvers`` measures, a file for each machine, with the machine's record. Prints the
regret (time of the chosen solvers over that of the fastest, less one) of each family of problems with the coefficients
as they are, and coefficients that random steps found better. With ``--steps 0`` it only reports.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.table import show
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.contraction import blocking, solvers, symbolic_lengths
from mgx_numba.codegen.cpu.contraction.solvers import solvers_of
from mgx_numba.codegen.cpu.contraction.strassen import strassen_blocking
from mgx_numba.codegen.cpu.contraction.winograd import winograd_amx, winograd_blocking
from mgx_numba.codegen.cpu.fingerprint import device_fingerprint
from mgx_numba.codegen.cpu.machine import machine_of, using
from mgx_numba.codegen.cpu.machine_record import named_record
from mgx_numba.codegen.platform import platform
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.gemm import GemmProblem
from mgx_numba.codegen.tuning.record import Problem, TuningRecord
from mgx_numba.codegen.tuning.request import problem_of

DATA = Path(__file__).parent / "data" / "choices"
_PACKAGE = "mgx_numba.codegen.cpu.contraction."
COEFFICIENTS = {
    "roofline": "EFFICIENCY",
    "select": "LEAST_GAIN",
    "gemv_int16": "FAR_SHARE NEAR_SHARE",
    "gemm_amx": "FORM_SECONDS NEAR_SECONDS SPLIT_SECONDS PARKED_SECONDS",
    "strassen.solver": "EFFICIENCY",
    "winograd.winograd_blocking": "_INPUT_VECTOR _OUTPUT_POINT _OUTPUT_VECTOR _FILTER_VECTOR _STORED_POINT _AHEAD_RATE",
    "winograd.winograd_amx": "_INPUT_VECTOR _OUTPUT_POINT _START",
}
"""Names of the coefficients that steps change, by module."""
LARGEST = 1.5
"""Ratio to the fastest solver's time that counts at most, so that no single problem rules."""


@dataclass(frozen=True)
class Measured:
    """A problem with the seconds of each solver by name, and how often the models have it."""

    problem: GemmProblem | ConvProblem
    count: int
    seconds: dict[str, float]

    @property
    def family(self) -> str:
        """Return the kind of kernel, by which the report groups problems."""
        p = self.problem
        dtype = p.types.uniform or str(p.types)
        kind = "exact" if not p.fast_math else "fast"
        if isinstance(p, GemmProblem):
            return f"{dtype} {kind}, {'few rows' if p.m * p.batch_count <= 3 else 'products'}"
        if p.groups > 1 and p.group_in == 1:
            return f"{dtype} {kind}, depthwise"
        return f"{dtype} {kind}, {'transposed ' if p.transposed else ''}convolutions {'x'.join(map(str, p.kernel))}"


@dataclass(frozen=True)
class Data:
    """The measurements of one machine: the file's name, and the CPU by LLVM's name, which names its record."""

    name: str
    cpu: str
    features: tuple[str, ...]
    threads: int
    problems: tuple[Measured, ...]

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Plan for this machine with its shipped record in a ``with`` block."""
        pretended = replace(platform(), cpu=self.cpu, features=dict.fromkeys(self.features, True))
        with host.pretending(pretended) as here, using(machine_of(named_record(self.cpu, here), here)):
            yield

    def choices(self) -> list[tuple[Measured, str]]:
        """Return each problem with the name of the solver that the cost model chooses.

        Solvers that were not measured do not take part.
        """
        with self.planning():
            return [
                (m, solvers.select(m.problem, self.threads, unsuited=_others(m)).name)
                for m in self.problems
            ]  # fmt: skip


def _others(measured: Measured) -> list[str]:
    return [s.name for s in solvers_of(measured.problem) if s.name not in measured.seconds]


def read(path: Path) -> Data:
    """Return the measurements of a file of ``bench.choices``, without problems that have a prologue or one solver."""
    given = json.loads(path.read_text())
    problems = tuple(_problems(given["problems"]))
    return Data(path.stem, given["family"], tuple(given["features"]), given["threads"], problems)


def _problems(given: Sequence[dict[str, Any]]) -> Iterator[Measured]:
    for entry in given:
        fields = entry["problem"]
        key = Problem.of(entry["operation"], fields["threads"], fields)
        problem = problem_of(TuningRecord(key, device_fingerprint(), "", {}, 1.0))
        known = {s.name for s in solvers_of(problem)} if problem else set()
        seconds = {name: value for name, value in entry["seconds"].items() if name in known}
        if problem is not None and "prologue" not in fields and len(seconds) > 1:
            yield Measured(problem, entry["count"], seconds)


def regret(chosen: Sequence[tuple[Measured, str]]) -> float:
    """Return the time of the chosen solvers over that of the fastest, less one."""
    best = sum(m.count * min(m.seconds.values()) for m, _ in chosen)
    return sum(m.count * m.seconds[name] for m, name in chosen) / best - 1 if best else 0.0


def regret_of(machines: Sequence[Data]) -> float:
    """Return the mean regret of all machines' families; each family weighs alike."""
    forget_estimates()
    found = []
    for data in machines:
        families: dict[str, list[float]] = {}
        for m, name in data.choices():
            families.setdefault(m.family, []).append(min(m.seconds[name] / min(m.seconds.values()), LARGEST) - 1)
        found += [sum(own) / len(own) for own in families.values()]
    return sum(found) / len(found)


def forget_estimates() -> None:
    """Clear the caches of costs, after a change of coefficients."""
    for function in (
        solvers._cost, solvers._refusals, winograd_blocking._best_block, winograd_amx._best_block,
        strassen_blocking.best_cut, blocking._best, blocking._best_ways, symbolic_lengths._estimates,
    ):  # fmt: skip
        function.cache_clear()


def fit(machines: Sequence[Data], steps: int, seed: int = 0) -> dict[tuple[str, str], float]:
    """Return the coefficients that random steps found better than the present ones, and leave them in the modules."""
    rng, places = random.Random(seed), [(m, n) for m, names in COEFFICIENTS.items() for n in names.split()]
    modules = {name: importlib.import_module(_PACKAGE + name) for name in COEFFICIENTS}

    def put(values: dict[tuple[str, str], float]) -> None:
        for (module, name), value in values.items():
            setattr(modules[module], name, value)

    start = {(module, name): float(getattr(modules[module], name)) for module, name in places}
    best, loss = start, regret_of(machines)
    for _ in range(steps):
        tried = dict(best)
        for place in rng.sample(places, min(len(places), rng.choice((1, 1, 2)))):
            tried[place] *= math.exp(rng.gauss(0, 0.12))
        put(tried)
        if (found := regret_of(machines)) < loss:
            best, loss = tried, found
    put(best)
    return {place: value for place, value in best.items() if value != start[place]}


def report(data: Data) -> None:
    """Print the regret of each family of one machine, and the choices that lose most."""
    families: dict[str, list[tuple[Measured, str]]] = {}
    chosen = data.choices()
    for m, name in chosen:
        families.setdefault(m.family, []).append((m, name))
    rows = [[name, str(len(own)), f"{regret(own):.1%}"] for name, own in sorted(families.items())]
    rows.append(["all", str(len(chosen)), f"{regret(chosen):.1%}"])
    show(f"{data.name}, {data.threads} threads", ["family", "problems", "regret"], rows)

    def lost(one: tuple[Measured, str]) -> float:
        return one[0].count * (one[0].seconds[one[1]] - min(one[0].seconds.values()))

    worst = sorted(chosen, key=lost, reverse=True)[:8]
    rows = [
        [m.family, name, min(m.seconds, key=m.seconds.__getitem__), f"{lost((m, name)) * 1e3:.3f}"] for m, name in worst
    ]
    show("Choices that lose most", ["family", "chosen", "fastest", "lost ms"], rows)


def machines(folder: Path = DATA) -> list[Data]:
    """Return the measurements of all machines in a folder."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def main() -> int:
    """Report, fit, and report again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=0, help="random steps")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measured times")
    given = parser.parse_args()
    found = machines(given.data)
    for data in found:
        report(data)
    if given.steps:
        for (module, name), value in fit(found, given.steps).items():
            print(f"{module}.{name} = {value:.4g}")
        for data in found:
            report(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
