"""The driver's commands, one to a module: ``add_arguments(parser)``, and ``run(args)``, which returns the status."""

from __future__ import annotations

from types import ModuleType

from . import (
    cache,
    chat,
    compile,
    cpp,
    doctor,
    explain,
    op,
    operators,
    params,
    perf,
    perplexity,
    read,
    roctx,
    run,
    serve,
    time,
    tune,
    verify,
)

__all__ = ["COMMANDS"]

COMMANDS: dict[str, ModuleType] = {
    "read": read,
    "params": params,
    "compile": compile,
    "run": run,
    "time": time,
    "perf": perf,
    "tune": tune,
    "explain": explain,
    "verify": verify,
    "roctx": roctx,
    "op": op,
    "onnx": operators,
    "tf": operators,
    "cpp": cpp,
    "cache": cache,
    "doctor": doctor,
    "chat": chat,
    "perplexity": perplexity,
    "serve": serve,
}
