"""From starting Python to the first result, in processes of their own that take turns.

Ours loads an ``.mxr`` that was saved compiled, with what a process leaves in the cache folder; ONNX Runtime loads the
``.onnx`` of the same model. ``python -m bench.start light_resnet50 bert --rounds 7`` prints medians. A light_* model is
measured as it ships (weights made by its nodes) and with random weights in the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case, prepare
from bench.peers import OURS

__all__ = ["Start", "measure_start"]

ROOT = Path(__file__).resolve().parent.parent
PEER = "onnxruntime"
_TIMEOUT = 600.0

_SAVE = """
import sys, mgx_numba
program = mgx_numba.parse_onnx(sys.argv[1])
program.compile(mgx_numba.get_target("cpu"), num_threads=int(sys.argv[3]))
program.save(sys.argv[2])
"""
_RUN = {
    OURS: """
import sys
import numpy as np
import mgx_numba
program = mgx_numba.load(sys.argv[1])
with np.load(sys.argv[2]) as stored:
    feeds = {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}
result = np.asarray(program.run(feeds)[0])
""",
    PEER: """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as stored:
    feeds = {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}
result = session.run(None, feeds)[0]
""",
}
_END = "sys.stdout.write('done\\n'); sys.stdout.flush()\n"


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a process to its first result, one for each round, by engine."""

    name: str
    seconds: Mapping[str, Sequence[float]]

    def median(self, engine: str) -> float:
        """The median of an engine's rounds."""
        return statistics.median(self.seconds[engine])


def measure_start(case: Case, path: Path, threads: int, folder: Path, rounds: int, peer: bool = True) -> Start:
    """Start processes of both engines in turn on the model at ``path``; files and our cache are kept in ``folder``.

    One process more of each engine comes first and is not counted. The seconds end when the result is there.

    Raises:
        RuntimeError: a process failed; the message ends with what it wrote.
    """
    saved = folder / f"{path.stem}.mxr"
    environment = {**os.environ, "MGX_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": _search_path()}
    _finish(_start(_SAVE, [path, saved, threads], environment))
    models = {OURS: saved, **({PEER: path} if peer else {})}
    seconds: dict[str, list[float]] = {engine: [] for engine in models}
    for _ in range(rounds + 1):
        for engine, model in models.items():
            begin = time.perf_counter()
            process = _start(_RUN[engine] + _END, [model, case.feeds_path, threads], environment)
            assert process.stdout is not None
            answer = process.stdout.readline()
            elapsed = time.perf_counter() - begin
            _finish(process)
            if answer.strip() != "done":
                raise RuntimeError(f"{engine} on {model.name} said {answer!r}")
            seconds[engine].append(elapsed)
    return Start(path.stem, {engine: times[1:] for engine, times in seconds.items()})


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def _start(program: str, arguments: Sequence[object], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdout=pipe, stderr=pipe, text=True)


def _finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=_TIMEOUT)
    if process.returncode != 0:
        raise RuntimeError(f"a process ended with {process.returncode}: {errors.strip()[-2000:]}")


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'model':28} {'MB':>6} {'ours, ms':>9} {'onnxruntime, ms':>16} {'ratio':>6}")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            case = prepare(name, folder)
            for path in dict.fromkeys((case.path, case.checked)):
                found = measure_start(case, path, arguments.threads, folder, arguments.rounds)
                ours, theirs = found.median(OURS), found.median(PEER)
                size = path.stat().st_size / 1e6
                print(
                    f"{found.name:28} {size:6.1f} {ours * 1e3:9.0f} {theirs * 1e3:16.0f} {theirs / ours:6.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
