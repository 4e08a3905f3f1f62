"""Compile a model and print the average time of a run."""

from __future__ import annotations

import argparse

from ..arguments import add_compile, add_inputs, add_iterations, add_loader, checked_repeats
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..logs import LOG
from ..measure import average


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)
    add_iterations(parser, 100)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    repeats = checked_repeats(args)
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    LOG.info("Running ...")
    seconds = repeats.times(lambda: model.run(inputs), "Running")
    print(f"Total time: {average(seconds) * 1e3:.6g}ms")
    return 0
