"""From the flags of `add_compile` to a compiled program."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

from ..api.options import CompileOptions, parse_compile_options
from ..api.program import program
from ..api.target import get_target
from ..targets.registry import DEFAULT

__all__ = ["asked_options", "compilation", "compile_model"]


def asked_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of ``program.compile`` that flags ask for."""
    options: dict[str, Any] = {}
    if args.disable_fast_math:
        options["fast_math"] = False
    if args.num_threads is not None:
        options["num_threads"] = args.num_threads
    if args.exhaustive_tune:
        options["exhaustive_tune"] = True
    if args.tune_budget is not None:
        options["tune_budget"] = args.tune_budget
    if args.problem_cache:
        options["problem_cache"] = args.problem_cache
    return options


def compilation(model: program, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Target and options of ``program.compile``: what flags say, else how a compiled program was saved."""
    known = CompileOptions() if model._options is None else model._options
    saved = DEFAULT if model._target is None else model._target.name()
    return args.target or saved, {**dataclasses.asdict(known), **asked_options(args)}


def compile_model(model: program, args: argparse.Namespace) -> program:
    """Compile in place; tells the time on standard error. A compiled program stays as it is unless flags ask for
    another target or other options.

    Raises:
        MgxError: the target is not available, or the compilation failed.
    """
    target, options = compilation(model, args)
    chosen = get_target(target)
    if model.is_compiled() and model._target == chosen and model._options == parse_compile_options(options, target):
        print(f"Compiled already: target {target}, fast_math={options['fast_math']}", file=sys.stderr)
        return model
    if args.enable_offload_copy:
        options["offload_copy"] = True
    start = time.perf_counter()
    model.compile(chosen, options)
    print(f"Compilation time: {(time.perf_counter() - start) * 1e3:.6g}ms", file=sys.stderr)
    return model
