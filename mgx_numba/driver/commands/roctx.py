"""Compile a model, run it, and record when each thread runs each step (JSON for Perfetto and Chrome).

MIGraphX's command emits markers for AMD's profiler; here the file holds the markers.
"""

from __future__ import annotations

import argparse

from ..arguments import add_compile, add_inputs, add_iterations, add_loader, checked_repeats
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model, title_of
from ..timeline import record_runs, write_trace_events
from ..writing import check_writable

_RUNS = 5  # enough to see variation between runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    add_iterations(parser, _RUNS)
    parser.add_argument("--trace", metavar="FILE", default="trace.json", help="the file (default trace.json)")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    iterations = checked_repeats(args).iterations
    check_writable(args.trace)
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    runs = record_runs(model, inputs, iterations)
    write_trace_events(args.trace, runs, title_of(args))
    print(f"{iterations} runs of {len(runs[0])} spans written to {args.trace}: open it in Perfetto or chrome://tracing")
    return 0
