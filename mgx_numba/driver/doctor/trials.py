"""Trials of small models against ``ref``, in processes of their own, so that a crash of a kernel is an outcome too.

``python -m mgx_numba.driver.doctor.trials NAME ...`` tries models and prints a line of JSON for each.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...dataclass import dataclass
from ...targets.registry import REFERENCE
from .models import MODELS

LIMIT_SECONDS = 300.0
"""Most seconds for all models together: a cold cache takes half a minute on two cores of Zen 5."""


@dataclass(frozen=True)
class ModelTrial:
    """The outcome of one model.

    Attributes:
        model: name in `MODELS`.
        target: the target that was compared with ``ref``.
        problem: why the trial failed; empty if it passed.
        error: largest root mean square error of a result, relative to the largest magnitude; None if it is not finite.
        compile_seconds: seconds of parsing, quantisation and compilation.
        run_seconds: seconds of the last run.
        host_steps: operators that NumPy computes, with the reasons.
        warnings: warnings of the trial.
    """

    model: str
    target: str
    problem: str = ""
    error: float | None = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    host_steps: dict[str, str] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the kind of the model, for readers."""
        return MODELS[self.model].title


def trials(names: Sequence[str], limit: float = LIMIT_SECONDS) -> Iterator[ModelTrial]:
    """Try models in another process, and yield the outcomes in order; a new process follows one that died.

    Args:
        names: names in `MODELS`.
        limit: most seconds for all models together.
    """
    left = list(names)
    end = time.monotonic() + limit
    # The same modules as in this process, and none of the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    while left:
        command = [sys.executable, "-m", __name__, *left]
        with (
            tempfile.TemporaryFile("w+") as said,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process,
        ):
            timer = threading.Timer(max(0.0, end - time.monotonic()), process.kill)
            timer.start()
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith("{"):
                        yield ModelTrial(**json.loads(line))
                        left.pop(0)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
            said.seek(0)
            told = said.read()
        if left:
            failed = left.pop(0)
            late = time.monotonic() >= end
            problem = f"not done within {limit:g} s" if late else _death(process.returncode, told)
            yield ModelTrial(failed, MODELS[failed].target, problem)


def _death(status: int, told: str) -> str:
    """Return why a process ended without an outcome."""
    last = next((line for line in reversed(told.splitlines()) if line.strip()), "")
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"the process died of {name}{': ' if last else ''}{last}"
    return last or f"the process ended with status {status}"


def tried(name: str) -> ModelTrial:
    """Compile and run a model of `MODELS`, and compare its results with ``ref``."""
    from ...api.functions import parse_onnx
    from ..compare import Tolerance
    from ..verifying import check_results

    model = MODELS[name]
    found: dict[str, Any] = {"model": name, "target": model.target}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of other packages
        try:
            proto, feeds = model.make()
            start = time.perf_counter()
            program = parse_onnx(proto)
            model.prepare(program, feeds)
            expected = program.clone().compile(REFERENCE)
            program.compile(model.target)
            found["compile_seconds"] = time.perf_counter() - start
            problems, errors = [], [0.0]
            for given in feeds:
                wanted = expected.run(given)
                started = time.perf_counter()
                results = program.run(given)
                found["run_seconds"] = time.perf_counter() - started
                for check in check_results(results, wanted, Tolerance(rms=model.limit)):
                    errors.append(check.difference.rms)
                    if not check.difference.passed:
                        problems.append(f"{check.what}: {check.difference.problem}")
            reasons = program.compiled.fallback_reasons() if program.compiled is not None else {}
            worst = float(np.max(errors))
            found |= {
                "error": worst if math.isfinite(worst) else None,
                "problem": "; ".join(problems),
                "host_steps": dict(reasons),
            }
        except Exception as error:  # whatever it is: the report names it
            found["problem"] = f"{type(error).__name__}: {error}"
    return ModelTrial(**found, warnings=tuple(dict.fromkeys(str(warning.message) for warning in seen)))


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(json.dumps(asdict(tried(one))), flush=True)
