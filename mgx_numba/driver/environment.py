"""MIGraphX's environment variables: which are in use, and which have no effect here."""

from __future__ import annotations

import os
from typing import TextIO

__all__ = ["KNOWN", "report_environment"]

PREFIXES = ("MIGRAPHX_", "MGX_")

KNOWN = frozenset(
    {
        "MIGRAPHX_DISABLE_PASSES",
        "MIGRAPHX_PROBLEM_CACHE",
        "MIGRAPHX_TIME_PASSES",
        "MIGRAPHX_TRACE_EVAL",
        "MIGRAPHX_TRACE_MATCHES",
        "MIGRAPHX_TRACE_PASSES",
        "MIGRAPHX_VERIFY_ENABLE_ALLCLOSE",
        "MGX_CACHE_DIR",
        "MGX_GPU_ARCH",
        "MGX_CPU_FEATURES",
        "MGX_NUM_THREADS",
    }
)


def report_environment(out: TextIO) -> None:
    """List the variables that are set and have an effect; warn of those that have none."""
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)}
    for name, value in found.items():
        if name in KNOWN:
            print(f"{name}={value}", file=out)
    for name in found:
        if name not in KNOWN:
            print(f"warning: environment variable {name} has no effect here", file=out)
