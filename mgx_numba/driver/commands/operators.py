"""List the supported operators of ONNX or TensorFlow."""

from __future__ import annotations

import argparse

from ...api.functions import get_onnx_operators, get_tf_operators
from ...errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the commands."""
    parser.add_argument("-l", "--list", action="store_true", help="list all operators")


def run(args: argparse.Namespace) -> int:
    """Run the command ``onnx`` or ``tf``."""
    if not args.list:
        raise OptionError(f"{args.command} needs --list")
    print("\n".join(get_onnx_operators() if args.command == "onnx" else get_tf_operators()))
    return 0
