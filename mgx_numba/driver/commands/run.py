"""Compile a model, run it once and print it."""

from __future__ import annotations

import argparse

from ..arguments import add_compile, add_inputs, add_loader
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_compile(parser)
    add_inputs(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args).run(inputs)
    print(model)
    return 0
