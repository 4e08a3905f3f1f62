"""Read a model and write it in another form, or say all that is wrong with it."""

from __future__ import annotations

import argparse

from ..arguments import add_loader, add_output
from ..loading import findings, load_model
from ..writing import write_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    add_loader(parser)
    add_output(parser)
    parser.add_argument(
        "--check", action="store_true", help="list everything that is wrong with an ONNX model, and write nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; its status is 1 if ``--check`` finds what a model is refused for."""
    if args.check:
        found = findings(args)
        print("\n".join(map(str, found)) or "nothing is wrong with the model")
        return int(not all(f.accepted for f in found))
    write_model(load_model(args), args)
    return 0
