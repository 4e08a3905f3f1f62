"""List the operators of the IR, or print the attributes of an operator."""

from __future__ import annotations

import argparse
import json

from ...errors import OptionError
from ...graph.serialize import attribute_to_value
from ...ops.base import known_operators, make_op


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("name", nargs="?", help="operator whose attributes and their defaults are printed as JSON")
    parser.add_argument("-l", "--list", action="store_true", help="list all operators")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import mgx_numba.ops  # noqa: F401  (registers the operators)

    if args.list:
        print("\n".join(known_operators()))
    elif args.name is None:
        raise OptionError("op needs the name of an operator, or --list")
    else:
        attributes = make_op(args.name).attributes()
        print(json.dumps({key: attribute_to_value(value) for key, value in attributes.items()}))
    return 0
