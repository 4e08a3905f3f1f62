"""List the supported TensorFlow operators."""

from __future__ import annotations

import argparse

from ...api.functions import get_tf_operators
from ...errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("-l", "--list", action="store_true", help="list all operators")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.list:
        raise OptionError("tf needs --list")
    print("\n".join(get_tf_operators()))
    return 0
