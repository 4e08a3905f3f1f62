"""Read a model and write it in another form, or list everything that is wrong with it."""

from __future__ import annotations

import argparse

from ..arguments import add_loader, add_output
from ..loading import findings, load_model
from ..writing import write_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_output(parser)
    parser.add_argument(
        "--check", action="store_true", help="list everything that is wrong with an ONNX model, and write nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status is 1 if ``--check`` finds a fault for which the model is refused."""
    if args.check:
        found = findings(args)
        print("\n".join(map(str, found)) or "nothing is wrong with the model")
        return int(not all(f.accepted for f in found))
    write_model(load_model(args), args)
    return 0
