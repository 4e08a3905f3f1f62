"""Time from starting Python to the first result: processes that import, load a model and run it once, in turn.

Ways: ``parse`` (`parse_onnx` and `compile`), ``background`` (the same with ``wait=False``, so that NumPy computes the
first result), ``session`` (`mgx_numba.session.InferenceSession`) and ``mxr`` (`load` of a file that was saved
compiled). Each is measured with an ``empty`` cache folder, and with a cache folder that an
earlier process of the same way ``filled``. ONNX Runtime and OpenVINO load the same ``.onnx`` file. Each process reports
seconds until its first result, CPU seconds of the whole process with its children, and peak resident memory.

    python -m bench.start                                                        # 20 models, all ways and peers
    python -m bench.start bert resnet50 --rounds 5 --ways parse,session,mxr --cache empty,filled --json start.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cases import Case
from bench.environment import describe
from bench.peers import OURS, PEERS, installed
from bench.start_models import START_MODELS, prepare_start
from bench.start_table import markdown

__all__ = ["CACHES", "WAYS", "Column", "Cost", "Start", "columns", "measure_start"]

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT = 600.0

_FEEDS = """
with np.load(sys.argv[2]) as stored:
    feeds = {name: stored[f"arr_{k}"] for k, name in enumerate(stored["arr_0"].tolist(), 1)}
del stored
"""
_SAVE = """
import sys, mgx_numba
program = mgx_numba.parse_onnx(sys.argv[1])
program.compile(mgx_numba.get_target("cpu"), num_threads=int(sys.argv[3]))
program.save(sys.argv[2])
"""
_PARSE = f"""
import sys
import numpy as np
import mgx_numba
program = mgx_numba.parse_onnx(sys.argv[1])
program.compile(mgx_numba.get_target("cpu"), num_threads=int(sys.argv[3]), wait={{wait}})
{_FEEDS.replace("{", "{{").replace("}", "}}")}
result = np.asarray(program.run(feeds)[0])
"""
_MXR = f"""
import sys
import numpy as np
import mgx_numba
program = mgx_numba.load(sys.argv[1])
{_FEEDS}
result = np.asarray(program.run(feeds)[0])
"""
_SESSION = f"""
import sys
import numpy as np
import {{module}} as onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
{_FEEDS.replace("{", "{{").replace("}", "}}")}
result = session.run(None, feeds)[0]
"""
_OPENVINO = f"""
import sys
import numpy as np
import openvino
settings = {{"INFERENCE_NUM_THREADS": int(sys.argv[3]), "PERFORMANCE_HINT": "LATENCY"}}
settings["INFERENCE_PRECISION_HINT"] = "f32"
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", settings)
{_FEEDS}
result = compiled(feeds)[0]
"""
_END = """
try:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
except (OSError, StopIteration):
    peak = 0
sys.stdout.write(f"done {peak}\\n"); sys.stdout.flush()
"""
WAYS = {
    "parse": _PARSE.format(wait=True),
    "background": _PARSE.format(wait=False),
    "session": _SESSION.format(module="mgx_numba.session"),
    "mxr": _MXR,
}
"""Programs by way; their arguments are the paths of model and inputs, and the number of threads."""
CACHES = ("empty", "filled")
_PEERS = {"onnxruntime": _SESSION.format(module="onnxruntime"), "openvino": _OPENVINO}


@dataclass(frozen=True, order=True)
class Column:
    """One column of the table: an engine; for ours, the way and the state of the cache folder, too."""

    engine: str
    way: str = ""
    cache: str = ""

    def __str__(self) -> str:
        return self.engine if self.engine != OURS else f"{self.way}, {self.cache}"


@dataclass(frozen=True)
class Cost:
    """The cost of a process.

    Attributes:
        seconds: from its start to its first result.
        cpu_seconds: of the whole process and its children.
        megabytes: peak resident memory; 0 where the system does not report it.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float


@dataclass(frozen=True)
class Start:
    """The costs of a model's processes by column, one for each round; ``failures`` has messages of peers that cannot
    run it."""

    name: str
    costs: Mapping[Column, Sequence[Cost]]
    failures: Mapping[Column, str]

    def median(self, column: Column) -> Cost:
        """Return the median of each cost of a column over its rounds."""
        rows = [asdict(cost) for cost in self.costs[column]]
        return Cost(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})


def columns(
    ways: Sequence[str] = tuple(WAYS), caches: Sequence[str] = CACHES, peers: Sequence[str] = PEERS
) -> list[Column]:
    """Return the columns of these ways in, states of the cache folder, and peers."""
    return [*(Column(OURS, way, cache) for way in ways for cache in caches), *(Column(peer) for peer in peers)]


def measure_start(
    case: Case, path: Path, threads: int, folder: Path, rounds: int, of: Sequence[Column] | None = None
) -> Start:
    """Start processes of all columns in turn on the model at ``path``; files and caches are kept in ``folder``.

    Each column with a filled cache folder begins with one uncounted process.

    Raises:
        RuntimeError: one of our processes failed; the message ends with its output.
    """
    of = columns() if of is None else of
    saved = folder / f"{path.stem}.mxr"
    if any(column.way == "mxr" for column in of):
        _cost(_SAVE + _END, [path, saved, threads], _environment(folder / "saving"))
    costs: dict[Column, list[Cost]] = {column: [] for column in of}
    failures: dict[Column, str] = {}
    for turn in range(rounds + 1):
        for column in of:
            if column in failures or (turn == 0 and column.cache == "empty"):
                continue
            program = WAYS[column.way] if column.engine == OURS else _PEERS[column.engine]
            model = saved if column.way == "mxr" else path
            with tempfile.TemporaryDirectory(dir=folder) as empty:
                cache = Path(empty) if column.cache == "empty" else folder / f"cache_{column.way}"
                try:
                    found = _cost(program + _END, [model, case.feeds_path, threads], _environment(cache))
                except RuntimeError as error:
                    if column.engine == OURS:
                        raise RuntimeError(f"{column}: {error}") from None
                    failures[column] = str(error)
                    continue
            if turn:
                costs[column].append(found)
    return Start(path.stem, {column: found for column, found in costs.items() if column not in failures}, failures)


def _environment(cache: Path) -> dict[str, str]:
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "MGX_CACHE_DIR": str(cache), "PYTHONPATH": search}


def _cost(program: str, arguments: Sequence[object], environment: Mapping[str, str]) -> Cost:
    """Run a program in a separate process and return its cost.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        answer = process.stdout.readline().split()
        seconds = time.perf_counter() - begin
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        errors.seek(0)
        if process.returncode != 0 or answer[:1] != ["done"]:
            text = errors.read().strip()[-2000:]
            raise RuntimeError(f"a process ended with {process.returncode}, it said {answer}: {text}")
    return Cost(seconds, used.ru_utime + used.ru_stime, int(answer[1]) / 1024)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(START_MODELS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS), help="ways in, with commas")
    parser.add_argument("--cache", default=",".join(CACHES), help="states of the cache folder, with commas")
    parser.add_argument("--peers", default=",".join(installed(PEERS)), help="engines beside ours, with commas")
    parser.add_argument("--scale", default="full", choices=("full", "tiny"), help="tiny: small models, for a trial")
    parser.add_argument("--json", type=Path, help="a file for all costs")
    options = parser.parse_args()
    options.models = [{"resnet50": "light_resnet50"}.get(name, name) for name in options.models or START_MODELS]
    for name, known in (("ways", WAYS), ("cache", CACHES), ("peers", PEERS)):
        given = [word for word in getattr(options, name).split(",") if word]
        if unknown := [word for word in given if word not in known]:
            parser.error(f"--{name}: unknown {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(options, name, given)
    return options


def main() -> None:
    """Print the table; a model that fails is reported and left out."""
    options = _options()
    of = columns(options.ways, options.cache, options.peers)
    found = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            try:
                case = prepare_start(name, folder, options.scale)
                found.append(measure_start(case, case.path, options.threads, folder, options.rounds, of))
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
        print(f"{name}: " + "; ".join(f"{c} {found[-1].median(c).seconds:.2f} s" for c in found[-1].costs),
              file=sys.stderr, flush=True)  # fmt: skip
    machine = describe()
    print(markdown(found, of, machine, options.threads, options.rounds))
    if options.json:
        rows = [
            {"model": start.name, **asdict(column), **asdict(cost)}
            for start in found
            for column, costs in start.costs.items()
            for cost in costs
        ]
        options.json.write_text(json.dumps({"machine": machine, "processes": rows}, indent=1))


if __name__ == "__main__":
    main()
