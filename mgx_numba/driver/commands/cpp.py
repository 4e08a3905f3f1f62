"""Print the folder of MIGraphX's C++ headers and of the CMake package migraphx."""

from __future__ import annotations

import argparse

from ...runtime.cpu.library import CPP_PREFIX


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--flags", action="store_true", help="print flags of a compiler instead of CMAKE_PREFIX_PATH")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    print(f"-I{CPP_PREFIX / 'include'} -pthread -ldl" if args.flags else CPP_PREFIX)
    return 0
