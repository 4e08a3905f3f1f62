"""An exported library against the same program in Python: time of a run, and from process start to the first result.

``python -m bench.library light_resnet50 bert --threads 2``. Runs take turns in one process, into which the library is
loaded; in ``copied`` runs the weights are in large pages instead of their mapped file. Starts are processes of the C++
example, until the results are in a file, with the library and with an ``.mxr`` file that contains it. ``reading`` is
the time to read the weights' file into memory, which such a process need not do. ``ratio`` is the ratio of the least
times of library and Python. ``beyond`` is the least start less the least reading. Models are measured with random
weights. It needs compilers of C and C++.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import mgx_numba
from bench.cases import Case, prepare
from bench.timing import Timing, interleave

__all__ = ["Library", "LibraryTimes", "build_example", "measure_library"]


class _Tensor(ctypes.Structure):
    """``mgx_tensor`` of ``mgx_numba.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_size_t),
        ("lens", ctypes.POINTER(ctypes.c_size_t)),
        ("data", ctypes.c_void_p),
    )


class _Options(ctypes.Structure):
    """``mgx_options``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("weights", ctypes.c_char_p),
        ("weights_offset", ctypes.c_uint64),
        ("num_threads", ctypes.c_int),
        ("copy_weights", ctypes.c_int),
    )


class _Table(ctypes.Structure):
    """``mgx_library``."""

    _fields_ = (
        ("api_version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("parameter_count", ctypes.c_size_t),
        ("output_count", ctypes.c_size_t),
        ("parameters", ctypes.POINTER(_Tensor)),
        ("outputs", ctypes.POINTER(_Tensor)),
        ("load", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p))),
        (
            "run",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.POINTER(_Tensor),
                ctypes.c_size_t,
                ctypes.POINTER(_Tensor),
                ctypes.c_size_t,
            ),
        ),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    )


class Library:
    """A loaded exported library."""

    def __init__(self, path: Path, threads: int = 0, copy_weights: bool = False) -> None:
        """Load the library; raise `RuntimeError` with the library's message on failure."""
        get = ctypes.CDLL(str(path)).mgx_get_library
        get.restype = ctypes.POINTER(_Table)
        self._table = get().contents
        self._program = ctypes.c_void_p()
        options = _Options(ctypes.sizeof(_Options), None, 0, threads, copy_weights)
        self._check(self._table.load(ctypes.byref(options), ctypes.byref(self._program)))

    def prepared(self, feeds: Mapping[str, np.ndarray], results: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs on these inputs and writes to these results.

        The arrays must be C-contiguous and have the declared shapes; the function keeps them alive.
        """
        table = self._table
        inputs = (_Tensor * table.parameter_count)(*table.parameters[: table.parameter_count])
        outputs = (_Tensor * table.output_count)(*table.outputs[: table.output_count])
        for tensor in inputs:
            tensor.data = feeds[tensor.name.decode()].ctypes.data
        for tensor, result in zip(outputs, results, strict=True):
            tensor.data = result.ctypes.data

        def run(kept: object = (dict(feeds), list(results))) -> None:
            self._check(table.run(self._program, inputs, len(inputs), outputs, len(outputs)))

        return run

    def close(self) -> None:
        """Free the program."""
        self._table.destroy(self._program)

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"status {status}: {self._table.error().decode()}")


@dataclass(frozen=True)
class LibraryTimes:
    """Times that `measure_library` measured.

    Attributes:
        runs: timings of ``python``, ``library`` and ``copied``.
        starts: seconds from the start of each process to its end, for ``library`` and ``mxr``.
        reading: seconds to read the weights, for each round.
        megabytes: size of the weights.
    """

    name: str
    runs: Mapping[str, Timing]
    starts: Mapping[str, Sequence[float]]
    reading: Sequence[float]
    megabytes: float

    @property
    def ratio(self) -> float:
        """Least time of a run of the library over the least time in Python."""
        return float(self.runs["library"].seconds.min() / self.runs["python"].seconds.min())

    @property
    def beyond(self) -> float:
        """Seconds of the library's fastest start less the fastest reading."""
        return min(self.starts["library"]) - min(self.reading)


def build_example(folder: Path, name: str) -> Path:
    """Compile the C++ example of a library under ``folder``.

    Raises:
        RuntimeError: the compiler is missing or fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler")
    program = folder / "example" / name / "example"
    call = [compiler, "-std=c++11", "-O2", f"-I{folder / 'include'}", f"{program}.cpp", "-o", str(program), "-ldl"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{compiler} failed:\n{done.stderr}")
    return program


def measure_library(case: Case, threads: int, folder: Path, budget: float, rounds: int) -> LibraryTimes:
    """Export a case to ``folder`` and measure it: runs for about ``budget`` seconds, starts for ``rounds`` rounds.

    Raises:
        RuntimeError: results differ from Python's, or a process or a compiler failed.
    """
    program = mgx_numba.parse_onnx(str(case.checked))
    program.compile(mgx_numba.get_target("cpu"), num_threads=threads)
    library = program.export_library(folder, "measured")
    wanted = [np.asarray(result) for result in program.run(case.feeds)]
    functions: dict[str, Callable[[], object]] = {"python": lambda: program.run(case.feeds)}
    loaded = {"library": Library(library, threads), "copied": Library(library, threads, copy_weights=True)}
    for kind, one in loaded.items():
        results = [np.asarray(result).copy() for result in program.run(case.feeds)]
        functions[kind] = one.prepared(case.feeds, results)
        for result in results:
            result.fill(0)
        functions[kind]()
        if not all(found.tobytes() == value.tobytes() for found, value in zip(results, wanted, strict=True)):
            raise RuntimeError(f"{case.name}: the results of the library ({kind}) are not those of Python")
    runs = interleave(functions, budget)
    for one in loaded.values():
        one.close()
    weights = library.with_name("measured.weights")
    program.save(folder / "measured.mxr", embed_library=True)
    files = {"library": library, "mxr": folder / "measured.mxr"}
    starts, reading = _measure_starts(case, program.get_parameter_names(), files, weights, folder, rounds)
    return LibraryTimes(case.name, runs, starts, reading, weights.stat().st_size / 1e6)


def _measure_starts(
    case: Case, names: Sequence[str], programs: Mapping[str, Path], weights: Path, folder: Path, rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    example = build_example(folder, "measured")
    files = [folder / f"input{k}.bin" for k in range(len(names))]
    for name, file in zip(names, files, strict=True):
        case.feeds[name].tofile(file)
    starts: dict[str, list[float]] = {kind: [] for kind in programs}
    reading = []
    for _ in range(rounds + 1):
        for kind, program in programs.items():
            begin = time.perf_counter()
            subprocess.run([example, program, *files], cwd=folder, stdout=subprocess.DEVNULL, check=True)
            starts[kind].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        np.fromfile(weights, np.uint8)
        reading.append(time.perf_counter() - begin)
    return {kind: seconds[1:] for kind, seconds in starts.items()}, reading[1:]


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of runs for each model")
    parser.add_argument("--rounds", type=int, default=7, help="starts of each model")
    arguments = parser.parse_args()
    print("ms; the least, then the median")
    columns = f"{'python':>16} {'library':>16} {'copied':>16} {'start':>14} {'of .mxr':>14} {'reading':>14}"
    print(f"{'model':24} {'MB':>6} {columns} {'ratio':>6} {'beyond':>7}")
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            found = measure_library(
                prepare(name, folder), arguments.threads, folder, arguments.budget, arguments.rounds
            )
            cells = [f"{t.seconds.min() * 1e3:8.3f}{t.median * 1e3:8.3f}" for t in found.runs.values()]
            processes = (*found.starts.values(), found.reading)
            cells += [f"{min(seconds) * 1e3:7.1f}{float(np.median(seconds)) * 1e3:7.1f}" for seconds in processes]
            cells += [f"{found.ratio:6.3f}", f"{found.beyond * 1e3:7.1f}"]
            print(f"{name:24} {found.megabytes:6.1f} {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
