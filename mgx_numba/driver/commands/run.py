"""Compile a model, run it once and print the program; optionally write the results to a file."""

from __future__ import annotations

import argparse

from ..arguments import add_compile, add_inputs, add_loader
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..writing import check_writable, write_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="write the results as NumPy arrays, by name")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.output:
        check_writable(args.output)
    model = load_model(args)
    inputs = make_inputs(model, args)
    results = compile_model(model, args).run(inputs)
    if args.output:
        write_results(args.output, dict(zip(model.get_output_names(), results, strict=True)))
    else:
        print(model)
    return 0
