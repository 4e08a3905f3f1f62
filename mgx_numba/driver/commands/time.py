"""Compile a model and print the average time of a run."""

from __future__ import annotations

import argparse
import time

from ...errors import OptionError
from ..arguments import add_compile, add_inputs, add_loader
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..logs import LOG
from ..progress import track
from ..timing import average


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    parser.add_argument("-n", "--iterations", type=int, default=100, metavar="N", help="runs (default 100)")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.iterations < 1:
        raise OptionError(f"--iterations is {args.iterations}, expected at least 1")
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    LOG.info("Running ...")
    model.run(inputs)
    seconds = []
    for _ in track(range(args.iterations), args.iterations, "Running"):
        start = time.perf_counter()
        model.run(inputs)
        seconds.append(time.perf_counter() - start)
    print(f"Total time: {average(seconds) * 1e3:.6g}ms")
    return 0
