"""Cost of loading and running a model in a fresh process: seconds by phase, and peak resident memory.

`probe` starts a process that runs this module. It imports only NumPy before the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.peers import ENGINES, open_session

__all__ = ["Probe", "probe"]

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT = 600.0


@dataclass(frozen=True)
class Probe:
    """The figures of one fresh process.

    ``phases`` are seconds: ``import``, the engine's own loading phases, and ``first run``. ``total_seconds`` is from
    starting the interpreter to its exit. ``peak_bytes`` is the peak resident memory; ``base_bytes`` is the resident
    memory before the engine's import: interpreter, NumPy and inputs.
    """

    engine: str
    phases: dict[str, float]
    total_seconds: float
    peak_bytes: int
    base_bytes: int

    @property
    def ready_seconds(self) -> float:
        """Seconds from the first import of the engine to the first result."""
        return sum(self.phases.values())


def probe(engine: str, model: Path, feeds: Path, threads: int, cache: Path, runs: int = 3) -> Probe:
    """Load ``model`` in a new process and run it ``runs`` times; compiled kernels are kept in ``cache``.

    Raises:
        RuntimeError: the process failed; the message ends with its output.
    """
    command = [sys.executable, "-m", "bench.probe", engine, str(model), str(feeds), str(threads), str(runs)]
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": search_path, "MGX_CACHE_DIR": str(cache)}
    start = time.perf_counter()
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT
    )
    total = time.perf_counter() - start
    if result.returncode != 0:
        raise RuntimeError(f"{engine} on {model.name} ended with {result.returncode}: {result.stderr.strip()[-2000:]}")
    return Probe(engine=engine, total_seconds=total, **json.loads(result.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """Return the peak resident memory (bytes) of this process.

    Linux reports it for the program alone in ``/proc``; getrusage there includes the parent process.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def load_feeds(path: Path) -> dict[str, np.ndarray]:
    """Return the inputs in a file from `bench.cases.prepare`."""
    with np.load(path) as stored:
        return {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}


def main() -> None:
    """Load a model, run it, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("model", type=Path)
    parser.add_argument("feeds", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("runs", type=int)
    arguments = parser.parse_args()
    feeds = load_feeds(arguments.feeds)
    base = peak_bytes()
    session = open_session(arguments.engine, arguments.model, feeds, arguments.threads)
    phases = dict(session.phases)
    start = time.perf_counter()
    session.run()
    phases["first run"] = time.perf_counter() - start
    for _ in range(arguments.runs - 1):
        session.run()
    print(json.dumps({"phases": phases, "peak_bytes": peak_bytes(), "base_bytes": base}), flush=True)


if __name__ == "__main__":
    main()
