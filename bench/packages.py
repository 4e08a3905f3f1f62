"""Run packages with ONNX models, unchanged, with ONNX Runtime and with this package's sessions, and compare results.

``python -m bench.packages`` makes an environment (2 GB) in the cache folder and installs the packages there. Each
package runs in three processes: with ONNX Runtime, with our sessions and an empty cache folder, and with that folder
again. Texts, labels, boxes and scores are compared; CPU seconds and memory of each process are printed.
``--only rapidocr,magika`` selects packages, ``--folder`` the folder of the environment, ``--rounds`` how often the
processes take turns (medians are printed). The exit status is 1 if a package differs.
``bench/package_cases.py`` has the functions that run the packages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.package_cases import CASES, INSTALLED

__all__ = ["differences"]

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = 2e-3
"""Largest difference of two numbers, absolute below 1 and relative above. Scores of deep networks in float32 differ by
1e-6 to 1e-3 between engines, and scores are not calibrated better."""
_TIMEOUT = 1200.0


def differences(mine: Any, theirs: Any, where: str = "result") -> Iterator[str]:
    """Yield the differences of two results: any in text, labels and structure, of numbers only above `NUMBERS`."""
    if isinstance(theirs, Mapping) and isinstance(mine, Mapping) and mine.keys() == theirs.keys():
        for name in theirs:
            yield from differences(mine[name], theirs[name], f"{where}.{name}")
    elif isinstance(theirs, list) and isinstance(mine, list) and len(mine) == len(theirs):
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            yield from differences(a, b, f"{where}[{k}]")
    elif _is_number(mine) and _is_number(theirs):
        same = mine == theirs or (mine != mine and theirs != theirs)
        if not same and not abs(mine - theirs) <= NUMBERS * max(1.0, abs(theirs)):
            yield f"{where}: {mine} for {theirs}"
    elif mine != theirs or type(mine) is not type(theirs):
        yield f"{where}: {_short(mine)} for {_short(theirs)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _environment(folder: Path) -> Path:
    """Return the interpreter of an environment with this package's dependencies and ONNX Runtime."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    needs = "llvmlite ml_dtypes msgpack numba numpy onnx protobuf onnxruntime Pillow".split()
    _install(python, needs)
    return python


def _install(python: Path, needs: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stderr}")


@dataclass(frozen=True)
class Ran:
    """Costs and results of a process that ran a package; ``found`` is None on failure, with the reason in ``error``."""

    found: dict[str, Any] | None
    error: str
    seconds: float
    cpu_seconds: float


def _run(python: Path, name: str, engine: str, cache: Path) -> Ran:
    """Run a package with an engine in a process that has the cache folder ``cache``."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        path = Path(folder, "result.json")
        command = [str(python), "-m", "bench.package_cases", name, engine, str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MGX_CACHE_DIR": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        stop = threading.Timer(_TIMEOUT, process.kill)
        stop.start()
        _, status, used = os.wait4(process.pid, 0)
        stop.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        costs = time.perf_counter() - begin, used.ru_utime + used.ru_stime
        if process.returncode or not path.exists():
            errors.seek(0)
            return Ran(None, (errors.read().strip().splitlines() or [f"ended with {process.returncode}"])[-1], *costs)
        return Ran(json.loads(path.read_text()), "", *costs)


def _compared(python: Path, name: str, rounds: int) -> bool:
    """Return whether a package gives equal results with both engines; print lines with the outcome and the costs."""
    ran: dict[str, list[Ran]] = {"onnxruntime": [], "ours, first": [], "ours, again": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for column, runs in ran.items():
                runs.append(_run(python, name, column.partition(",")[0], Path(cache)))
                if runs[-1].found is None:
                    print(f"{name:24} {column}: FAILED: {runs[-1].error}")
                    return False
    theirs, *mine = (runs[-1].found for runs in ran.values())
    assert theirs is not None
    found = [line for one in mine if one is not None for line in differences(one["result"], theirs["result"])]
    size = len(json.dumps(theirs["result"]))
    print(f"{name:24} {theirs['version']:10} {f'{len(found)} differ' if found else 'same'} ({size} bytes of JSON)")
    for column, runs in ran.items():
        cpu, seconds = (
            statistics.median(costs) for costs in ([r.cpu_seconds for r in runs], [r.seconds for r in runs])
        )
        print(f"    {column:14} {cpu:7.2f} CPU s {seconds:7.2f} s")
    warnings = [text for one in mine if one is not None for text in one["warnings"]]
    for line in [*found[:5], *(f"warning: {text}" for text in dict.fromkeys(warnings))]:
        print(f"    {line}")
    return not found


def main() -> int:
    """Install the packages, compare their results and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mgx_numba-packages")
    parser.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--folder", type=Path, default=cache, help=f"of the environment (default {cache})")
    parser.add_argument("--rounds", type=int, default=1, help="turns of the processes (default 1)")
    parser.add_argument("--offline", action="store_true", help="install nothing")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    python = args.folder / "bin" / "python" if args.offline else _environment(args.folder)
    same = []
    for name in names:
        try:
            if not args.offline:
                _install(python, INSTALLED[name])
            same.append(_compared(python, name, args.rounds))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name:24} {error}")
            same.append(False)
    print(f"{sum(same)} of {len(same)} packages give the same")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
