"""Compilation of a program by the flags of `add_compile`."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

from ..api.options import CompileOptions, parse_compile_options
from ..api.program import program
from ..api.target import get_target
from ..targets.registry import DEFAULT
from .logs import LOG


def requested_options(args: argparse.Namespace) -> dict[str, object]:
    """Return the options of ``program.compile`` that flags set."""
    options: dict[str, object] = {}
    if args.disable_fast_math:
        options["fast_math"] = False
    if args.num_threads is not None:
        options["num_threads"] = args.num_threads
    if args.float32_matmul_precision is not None:
        options["float32_matmul_precision"] = args.float32_matmul_precision
    if args.no_plan_cache:
        options["plan_cache"] = False
    if args.exhaustive_tune:
        options["exhaustive_tune"] = True
    if args.tune_budget is not None:
        options["tune_budget"] = args.tune_budget
    if args.problem_cache:
        options["problem_cache"] = args.problem_cache
    return options


def compilation(model: program, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return target and options of ``program.compile`` from the flags; unset flags keep a compiled program's own."""
    known = CompileOptions() if model.compile_options is None else model.compile_options
    saved = DEFAULT if model.compile_target is None else model.compile_target.name()
    return args.target or saved, {**dataclasses.asdict(known), **requested_options(args)}


def compile_model(model: program, args: argparse.Namespace) -> program:
    """Compile a program in place and log the time.

    A compiled program is left as it is unless flags ask for another target or other options.

    Raises:
        MgxError: the target is not available, or the compilation failed.
    """
    target, options = compilation(model, args)
    chosen = get_target(target)
    if (
        model.is_compiled()
        and model.compile_target == chosen
        and model.compile_options == parse_compile_options(options, target)
    ):
        LOG.info("Compiled already: target %s, fast_math=%s", target, options["fast_math"])
        return model
    if args.enable_offload_copy:
        options["offload_copy"] = True
    start = time.perf_counter()
    model.compile(chosen, options)
    LOG.info("Compilation time: %.6gms", (time.perf_counter() - start) * 1e3)
    return model
