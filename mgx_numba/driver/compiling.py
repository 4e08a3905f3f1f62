"""From the flags of `add_compile` to a compiled program."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..api.program import program
from ..api.target import get_target
from ..errors import UnsupportedError

__all__ = ["compile_model", "compile_options"]

_QUANTISATIONS = ("fp16", "bf16", "int8", "fp8", "int4_weights")


def compile_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of ``program.compile``.

    Raises:
        UnsupportedError: a quantisation is asked for.
    """
    for name in _QUANTISATIONS:
        if getattr(args, name):
            raise UnsupportedError(f"--{name.replace('_', '-')}: quantisation is not available in this version")
    options: dict[str, Any] = {"fast_math": not args.disable_fast_math, "num_threads": args.num_threads}
    if args.enable_offload_copy:
        options["offload_copy"] = True
    if args.exhaustive_tune:
        options["exhaustive_tune"] = True
    if args.tune_budget is not None:
        options["tune_budget"] = args.tune_budget
    if args.problem_cache:
        options["problem_cache"] = args.problem_cache
    return options


def compile_model(model: program, args: argparse.Namespace) -> program:
    """Compile in place for the target that the flags name; tells the time on standard error.

    Raises:
        MgxError: the target is not available, or the compilation failed.
    """
    start = time.perf_counter()
    model.compile(get_target(args.target), compile_options(args))
    print(f"Compilation time: {(time.perf_counter() - start) * 1e3:.6g}ms", file=sys.stderr)
    return model
