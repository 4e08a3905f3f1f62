"""Read a model and write it in another form."""

from __future__ import annotations

import argparse

from ..arguments import add_loader, add_output
from ..loading import load_model
from ..writing import write_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    write_model(load_model(args), args)
    return 0
