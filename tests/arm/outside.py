"""The process of this machine that works for the emulated one: it compiles kernels and runs ONNX Runtime.

Compiling takes 20 times as long inside the emulator, and ONNX Runtime ends with a segmentation fault there. The
emulated process starts ``python -m tests.arm.outside`` of this machine and sends pickles; each answer is a result or an
exception. An object whose symbol is not the emulated process's is refused there, so both agree on a kernel's identity.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mgx_numba.codegen.backend import backend
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.platform import Platform, platform
from mgx_numba.errors import CompileError

__all__ = ["Outside"]

ROOT = Path(__file__).resolve().parents[2]


class Outside:
    """The process, seen from the emulated one."""

    def __init__(self, python: str) -> None:
        command = ["/usr/bin/env", "-u", "MGX_CACHE_DIR", f"PYTHONPATH={ROOT}", python, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self._lock = threading.Lock()

    def call(self, function: str, *given: Any) -> Any:
        """Call a function of `SERVICES`; its exceptions pass through."""
        with self._lock:
            pickle.dump((function, given), self._process.stdin)
            self._process.stdin.flush()
            result = pickle.load(self._process.stdout)
        if isinstance(result, Exception):
            raise result
        return result

    def compile(self, source: KernelSource) -> bytes:
        """Compile a kernel for the emulated CPU.

        Raises:
            CompileError: it cannot be compiled.
        """
        code = self.call("compile", source, platform(), os.environ.get(host.ENVIRONMENT, ""))
        return backend(source.backend).finished(source, code)

    def onnxruntime(self) -> ModuleType:
        """Return a module with the names of ONNX Runtime that tests use."""
        outside = self

        class InferenceSession:
            def __init__(self, model: Any, sess_options: Any = None, providers: Sequence[str] = ()) -> None:
                model = model if isinstance(model, bytes) else Path(model).read_bytes()
                self._number, *self._names = outside.call("session", model, vars(sess_options or SimpleNamespace()))

            def get_inputs(self) -> list[Any]:
                return [SimpleNamespace(name=name) for name in self._names[0]]

            def get_outputs(self) -> list[Any]:
                return [SimpleNamespace(name=name) for name in self._names[1]]

            def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
                return outside.call("run", self._number, names, dict(feeds))

        module = ModuleType("onnxruntime")
        module.InferenceSession = InferenceSession
        module.SessionOptions = module.RunOptions = SimpleNamespace
        module.GraphOptimizationLevel = SimpleNamespace(ORT_DISABLE_ALL=0, ORT_ENABLE_ALL=99)  # the values there
        return module


_sessions: list[Any] = []


def _compile(source: KernelSource, cpu: Platform, features: str) -> bytes:
    os.environ[host.ENVIRONMENT] = features
    with host.pretending(cpu):
        return backend(source.backend).compile(source)


def _session(model: bytes, settings: Mapping[str, Any]) -> tuple[int, list[str], list[str]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in settings.items():
        level = name == "graph_optimization_level"
        setattr(options, name, onnxruntime.GraphOptimizationLevel(value) if level else value)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    _sessions.append(session)
    names = ([one.name for one in found] for found in (session.get_inputs(), session.get_outputs()))
    return len(_sessions) - 1, *names


def _run(number: int, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
    return _sessions[number].run(names, feeds)


SERVICES = {"compile": _compile, "session": _session, "run": _run}


def main() -> None:
    """Answer requests until the input ends; what is printed goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            function, given = pickle.load(requests)
        except EOFError:
            return
        try:
            result = SERVICES[function](*given)
        except CompileError as error:
            result = error
        except Exception as error:  # of a class that the other side may lack
            result = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump(result, answers)
        answers.flush()


if __name__ == "__main__":
    sys.exit(main())
