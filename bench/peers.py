"""The compared engines behind one interface: a model file is opened once, then run on the same inputs.

Each engine is configured for its best latency on N threads: one request at a time, float32 arithmetic, outputs lent
where possible. If the better value of a setting depends on the machine, `ENGINES` lists both, and a measurement keeps
the faster. Engines are imported on use, so a process that opens one engine holds only that engine.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ENGINES", "OURS", "PEERS", "Session", "installed", "is_installed", "open_session"]

Feeds = Mapping[str, np.ndarray]
Outputs = Sequence[np.ndarray]

OURS = "mgx_numba"


@dataclass(frozen=True)
class Session:
    """A model that an engine has loaded.

    ``run`` computes the outputs once, for the session's inputs or for given inputs; lent outputs hold until the next
    call. ``phases`` are the seconds of loading by phase, in order: the engine's import, then the engine's own phases.
    ``handle`` is the engine's own object.
    """

    engine: str
    setting: str
    phases: Mapping[str, float]
    run: Callable[..., Outputs]
    handle: Any = field(repr=False, default=None)

    @property
    def name(self) -> str:
        """Engine and setting, for a reader."""
        return f"{self.engine} ({self.setting})" if self.setting else self.engine

    @property
    def load_seconds(self) -> float:
        """Seconds from the file to a runnable session, without the engine's import."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "import")


class _Phases(dict[str, float]):
    """Seconds by phase, filled by ``with phases("parse"):``."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self[name] = time.perf_counter() - start


def _open_ours(path: Path, feeds: Feeds, threads: int, fast_math: str = "1") -> Session:
    phases = _Phases()
    with phases("import"):
        import mgx_numba
    with phases("parse"):
        program = mgx_numba.parse_onnx(str(path))
    with phases("compile"):
        program.compile(mgx_numba.get_target("cpu"), num_threads=threads, fast_math=fast_math == "1")

    inputs = dict(feeds)

    def run(given: Feeds = inputs) -> Outputs:
        return program.run(given)

    return Session(OURS, "" if fast_math == "1" else "exact", phases, run, program)


def _open_onnxruntime(path: Path, feeds: Feeds, threads: int, spinning: str = "1") -> Session:
    phases = _Phases()
    with phases("import"):
        import onnxruntime
    with phases("load"):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = dict(feeds)

    def run(given: Feeds = inputs) -> Outputs:
        return session.run(None, given)

    setting = "spinning" if spinning == "1" else "not spinning"
    return Session("onnxruntime", setting, phases, run, session)


def _open_openvino(path: Path, feeds: Feeds, threads: int, pinning: bool = True, precision: str = "f32") -> Session:
    phases = _Phases()
    with phases("import"):
        import openvino
    with phases("load"):
        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(str(path)),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": pinning,
                **({"INFERENCE_PRECISION_HINT": precision} if precision else {}),
            },
        )
        request = compiled.create_infer_request()
    inputs = dict(feeds)

    def run(given: Feeds = inputs) -> Outputs:
        results = request.infer(given, share_inputs=True, share_outputs=True)
        return [results[k] for k in range(len(results))]

    return Session("openvino", "pinned" if pinning else "not pinned", phases, run, (compiled, request))


Opener = Callable[..., Session]

ENGINES: dict[str, tuple[tuple[Opener, dict[str, Any]], ...]] = {
    OURS: ((_open_ours, {}),),
    "onnxruntime": ((_open_onnxruntime, {"spinning": "1"}), (_open_onnxruntime, {"spinning": "0"})),
    "openvino": ((_open_openvino, {"pinning": True}), (_open_openvino, {"pinning": False})),
}
"""Openers of each engine, one entry for each setting that may be its best; the first is its default."""

PEERS = tuple(engine for engine in ENGINES if engine != OURS)


def installed(engines: Sequence[str] = tuple(ENGINES)) -> list[str]:
    """Return the engines that can be imported.

    Raises:
        ValueError: an engine's name is unknown.
    """
    for engine in engines:
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}: expected one of {', '.join(ENGINES)}")
    return [engine for engine in engines if is_installed(engine)]


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def open_session(
    engine: str, path: Path, feeds: Feeds, threads: int, setting: int = 0, exact: bool = False, own: bool = False
) -> Session:
    """Open a model with one engine, in its setting number ``setting``.

    ``exact`` disables our fast math. With ``own``, OpenVINO chooses its precision (bfloat16 on CPUs with units for it).
    Exceptions of the engine pass through.
    """
    opener, options = ENGINES[engine][setting]
    if exact and engine == OURS:
        options = {**options, "fast_math": "0"}
    if own and engine == "openvino":
        options = {**options, "precision": ""}
    return opener(path, feeds, threads, **options)
