"""Start-up time of a model on a GPU, to its first result, in separate processes.

Cold: the cache folder is empty, so all kernels are compiled. Warm: the cache folder holds them. Loaded: the program was
saved compiled, and its plan is cached, too; the time is from starting Python to the first result.

    python -m bench.gpu_start light_resnet50 resnet50 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cases import prepare

__all__ = ["start"]

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT = 300.0
_FEEDS = """
import sys, time, json
begun = time.perf_counter()
import numpy as np
import mgx_numba
imported = time.perf_counter()
def feeds():
    with np.load(sys.argv[2]) as stored:
        return {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}
"""
_COMPILE = (
    _FEEDS
    + """
program = mgx_numba.parse_onnx(sys.argv[1])
if len(sys.argv) > 4:
    mgx_numba.quantize_fp16(program)
from mgx_numba.runtime.gpu.cuda import cuda_engine
opening = time.perf_counter()
cuda_engine()
parsed = time.perf_counter()
program.compile(mgx_numba.get_target("gpu"))
compiled = time.perf_counter()
result = np.asarray(program.run(feeds())[0])
first = time.perf_counter()
kernels = len(program.compiled.kernels())
print(json.dumps({"import": imported - begun, "open": parsed - opening, "compile": compiled - parsed,
                  "first_run": first - compiled, "kernels": kernels}), flush=True)
program.save(sys.argv[3])
"""
)
_LOAD = (
    _FEEDS
    + """
program = mgx_numba.load(sys.argv[1])
loaded = time.perf_counter()
result = np.asarray(program.run(feeds())[0])
print(json.dumps({"import": imported - begun, "load": loaded - imported, "first_run": time.perf_counter() - loaded}))
"""
)


def start(names: list[str], rounds: int = 3, half: bool = False) -> list[dict[str, Any]]:
    """Return seconds by model: compiling cold and warm, and from starting Python to the first result, each the least of
    rounds."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            case = prepare(name, place)
            given = [str(case.checked), str(case.feeds_path), str(place / "saved.mxr"), *(["half"] * half)]
            cold = _run(_COMPILE, given, place)
            warm = min((_run(_COMPILE, given, place) for _ in range(rounds)), key=lambda r: r["compile"])
            loading = [str(place / "saved.mxr"), str(case.feeds_path)]
            loaded = min((_run(_LOAD, loading, place) for _ in range(rounds)), key=lambda r: r["process"])
        found.append({"name": name, "cold": cold, "warm": warm, "loaded": loaded})
        print(
            f"{name:24} {cold['kernels']} kernels, cold compile {cold['compile']:.2f} s, warm {warm['compile']:.2f} s,"
            f" loaded: process to first result {loaded['process']:.2f} s\n"
            f"  warm {_parts(warm)}\n  loaded {_parts(loaded)}",
            flush=True,
        )
    return found


def _parts(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.3f}" for key, value in figures.items() if key != "kernels")


def _run(program: str, arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a process; return its output and the time until then."""
    environment = {**os.environ, "MGX_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    search_path = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(search_path)
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - begun
        if process.wait(_TIMEOUT) or not line:
            raise RuntimeError(f"a process ended with status {process.returncode}")
    return {**json.loads(line), "process": seconds}


def main() -> None:
    """Measure the named models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet50"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args()
    figures = start(given.models, given.rounds, given.fp16)
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
