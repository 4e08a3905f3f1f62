"""Flags of ``compile`` that write a shared library for C and C++."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..api.program import program
from ..errors import OptionError


def add_library(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a shared library."""
    group = parser.add_argument_group("library for C and C++, in place of other output")
    group.add_argument("--library", metavar="FOLDER", help="write a shared library, headers, CMake files, an example")
    group.add_argument("--library-name", metavar="NAME", help="its name (default: that of the model file)")
    group.add_argument("--embed-weights", action="store_true", help="put the weights inside of the library")
    group.add_argument("--c-interface", action="store_true", help="put the functions of migraphx.h into the library")


def check_library(args: argparse.Namespace) -> None:
    """Raise early, before compiling, if the library flags contradict other flags.

    Raises:
        OptionError: the flags contradict each other; the message names the flag.
    """
    if args.library is None:
        for flag in ("library_name", "embed_weights", "c_interface"):
            if getattr(args, flag):
                raise OptionError(f"--{flag.replace('_', '-')} needs --library FOLDER")
    elif args.kernels or args.output or args.form:
        raise OptionError("--library writes a folder of its own: leave out --output, --kernels and the form of output")


def write_library(model: program, args: argparse.Namespace) -> None:
    """Write the library and print its path; errors as in ``program.export_library``."""
    name = args.library_name or _name_of(args.file)
    print(model.export_library(args.library, name, embed_weights=args.embed_weights, c_interface=args.c_interface))


def _name_of(file: str | None) -> str:
    """Return an identifier of C made from a model's file name."""
    name = re.sub(r"\W", "_", Path(file or "model").stem, flags=re.ASCII)
    return name if name[:1].isalpha() else f"model_{name}"
