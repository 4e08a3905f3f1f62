"""Compile a model, time it, and report each instruction, kernel and the whole."""

from __future__ import annotations

import argparse
import os

from ...errors import OptionError
from ..arguments import add_compile, add_inputs, add_loader
from ..batches import check_plot, measure_batches, parse_sizes, plot_batches, write_batches
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..measure import measure
from ..rebatch import batch_of
from ..report import write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    parser.add_argument("-n", "--iterations", type=int, default=100, metavar="N", help="runs (default 100)")
    parser.add_argument("-d", "--detailed", action="store_true", help="summarise by kernel and sizes")
    parser.add_argument("--batch-sizes", metavar="N,N,...", help="compare the throughput of batch sizes instead")
    parser.add_argument("--plot", metavar="FILE", help="with --batch-sizes: draw it into a PNG file")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.iterations < 1:
        raise OptionError(f"--iterations is {args.iterations}, expected at least 1")
    if args.batch_sizes is not None:
        sizes = parse_sizes(args.batch_sizes)
        if args.plot:
            check_plot(args.plot)
        times = measure_batches(args, sizes, args.iterations)
        write_batches(times)
        if args.plot:
            plot_batches(times, args.plot, os.path.basename(args.file or "test"))
        return 0
    if args.plot:
        raise OptionError("--plot needs --batch-sizes")
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    measured = measure(model, inputs, args.iterations)
    write_report(measured, batch_of(model, inputs, args.batch), args.detailed)
    return 0
