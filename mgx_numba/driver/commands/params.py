"""List the parameters of a model and their shapes."""

from __future__ import annotations

import argparse

from ..arguments import add_loader
from ..loading import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    for name, shape in load_model(args).get_parameter_shapes().items():
        print(f"{name}: {shape}")
    return 0
