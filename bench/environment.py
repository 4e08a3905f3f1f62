"""Description of a measurement's environment: source, machine, and versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "describe", "describe_cpu"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("numba", "llvmlite", "numpy", "onnx", "onnxruntime", "openvino", "torch")


def describe() -> dict[str, Any]:
    """Return commit, date, command (of absolute paths their last parts), CPU and versions, ready for JSON."""
    arguments = [Path(one).name if os.path.isabs(one) else one for one in sys.argv[1:]]
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *arguments]),
        "cpu": describe_cpu(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def describe_cpu() -> dict[str, Any]:
    """Return the CPU's model, LLVM's name for it, its vector width (bits), and the number of usable cores."""
    from mgx_numba.codegen.cpu import host
    from mgx_numba.codegen.platform import cpu_model
    from mgx_numba.runtime.cpu.threads import available_cores

    return {
        "model": cpu_model(),
        "llvm_name": host.host().name,
        "vector_bits": host.vector_bits(),
        "cores": available_cores(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    """Return git's output for this source tree; empty without git or a repository."""
    try:
        result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()
