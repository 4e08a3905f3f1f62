"""Test whether tuning travels: a model is tuned in one cache folder, and its file is loaded with an empty one.

``python -m bench.carry light_resnet50 bert`` prints a line for each reader of the file: a reader on this machine, a
reader that trusts the file's machine code, and a reader for which the records are of another machine. Each must measure
nothing, choose the same solvers as the tuning process and give the same bits. The tuning process and the reader run in
turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from bench.cases import Case, prepare
from mgx_numba.graph.checksums import CHECKSUMS

__all__ = ["READERS", "Carried", "carry"]

ROOT = Path(__file__).resolve().parent.parent
READERS = ("fresh", "trusting", "elsewhere")
_CALLS = 10

_PROCESS = """
import hashlib, json, statistics, sys, time, warnings
import numpy as np
import mgx_numba
from mgx_numba.targets.cpu.measuring import Bench

how, path, feeds_path, threads, calls, budget = sys.argv[1:]
measured = []
sample = Bench.sample
Bench.sample = lambda self, candidate: measured.append(candidate) or sample(self, candidate)
with np.load(feeds_path) as stored:
    feeds = {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    if how == "tune":
        net = mgx_numba.parse_onnx(path)
        net.compile(exhaustive_tune=True, tune_budget=float(budget), num_threads=int(threads))
        net.save(path + ".mxr", embed_objects=True)
    else:
        net = mgx_numba.load(path, trust_objects=how == "trusting")
results = b"".join(np.asarray(r).tobytes() for r in net.run(feeds))
print(json.dumps({
    "measurements": len(measured),
    "choices": [[c.problem.key, c.solver, dict(c.configuration)] for c in net.tuning_choices()],
    "told": [str(w.message) for w in told],
    "results": hashlib.sha256(results).hexdigest(),
}), flush=True)
for _ in sys.stdin:
    seconds = []
    for _ in range(int(calls)):
        begin = time.perf_counter()
        net.run(feeds)
        seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds), flush=True)
"""


@dataclass(frozen=True)
class Carried:
    """The outcome of one reader of a tuned file.

    Attributes:
        problems: number of distinct products and convolutions of the model.
        measurements: number of candidates that the reader measured.
        same: whether it solves each problem by the same solver and configuration.
        equal: whether its results have the same bits.
        told: its warnings.
        tuned, seconds: median seconds of a run in the tuning process and in the reader.
    """

    reader: str
    problems: int
    measurements: int
    same: bool
    equal: bool
    told: list[str]
    tuned: float
    seconds: float


def carry(case: Case, folder: Path, threads: int, budget: float, rounds: int) -> list[Carried]:
    """Tune ``case.checked`` for at most ``budget`` seconds, read the file in each way, and compare.

    Raises:
        RuntimeError: a process failed; the message ends with its output.
    """
    saved = Path(f"{case.checked}.mxr")
    other = folder / "elsewhere.mxr"
    common = (case.feeds_path, threads, _CALLS, budget)
    found = []
    with _Process(folder / "tuned", "tune", case.checked, *common) as tuner:
        _of_another_machine(saved, other)
        for reader in READERS:
            path = other if reader == "elsewhere" else saved
            with _Process(folder / reader, reader, path, *common) as process:
                times = [(tuner.median(), process.median()) for _ in range(rounds)]
            mine, theirs = tuner.said, process.said
            found.append(
                Carried(
                    reader,
                    len(mine["choices"]),
                    theirs["measurements"],
                    mine["choices"] == theirs["choices"],
                    mine["results"] == theirs["results"],
                    theirs["told"],
                    statistics.median(t for t, _ in times),
                    statistics.median(t for _, t in times),
                )
            )
    return found


def _of_another_machine(saved: Path, path: Path) -> None:
    """Write a copy of the file whose records seem to be of another CPU."""
    root = msgpack.unpackb(saved.read_bytes())
    del root[CHECKSUMS]  # the checksums would reveal the change
    for record in root["mgx_numba"]["tuning"]:
        record["fingerprint"].update(cpu="another", cores=96)
    path.write_bytes(msgpack.packb(root))


class _Process:
    """A process with its own cache folder; ``said`` is its report before its runs are timed."""

    def __init__(self, cache: Path, *arguments: object) -> None:
        environment: Mapping[str, str] = {
            **{k: v for k, v in os.environ.items() if k != "MIGRAPHX_PROBLEM_CACHE"},
            "MGX_CACHE_DIR": str(cache),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _PROCESS, *map(str, arguments)]
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.said: dict[str, Any] = json.loads(self._answer())

    def median(self) -> float:
        """Return the median seconds of some runs."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise RuntimeError(f"a process ended with {self._process.returncode}: {errors.strip()[-2000:]}")
        return line

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main() -> int:
    """Print a line for each model and reader; return 1 if a reader measured or differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="seconds for tuning one model")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    good = True
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as temporary:
            case = prepare(name, Path(temporary))
            for c in carry(case, Path(temporary), arguments.threads, arguments.budget, arguments.rounds):
                good = good and c.same and c.equal and not c.measurements
                words = [
                    f"{name} {c.reader}: {c.problems} problems, {c.measurements} measurements",
                    "the same solvers and configurations" if c.same else "OTHER solvers or configurations",
                    "equal results" if c.equal else "OTHER results",
                    f"{c.tuned * 1e3:.3f} ms tuned, {c.seconds * 1e3:.3f} ms here",
                    *c.told,
                ]
                print("; ".join(words), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
