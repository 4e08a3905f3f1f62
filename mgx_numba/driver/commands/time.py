"""Compile a model and print the average time of a run."""

from __future__ import annotations

import argparse
import time

from ...progress import track
from ..arguments import add_compile, add_inputs, add_iterations, add_loader, checked_iterations
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..logs import LOG
from ..timing import average


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    add_iterations(parser, 100)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    iterations = checked_iterations(args)
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    LOG.info("Running ...")
    model.run(inputs)
    seconds = []
    for _ in track(range(iterations), iterations, "Running"):
        start = time.perf_counter()
        model.run(inputs)
        seconds.append(time.perf_counter() - start)
    print(f"Total time: {average(seconds) * 1e3:.6g}ms")
    return 0
