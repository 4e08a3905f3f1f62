"""Compile a model and write the compiled program."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ...api.program import program
from ...errors import OptionError
from ..arguments import add_compile, add_inputs, add_loader, add_output
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import load_model
from ..writing import check_output, write_model


def add_library(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a shared library."""
    group = parser.add_argument_group("library for C and C++, in place of other output")
    group.add_argument("--library", metavar="FOLDER", help="write a shared library, headers, CMake files, an example")
    group.add_argument("--library-name", metavar="NAME", help="its name (default: that of the model file)")
    group.add_argument("--embed-weights", action="store_true", help="put the weights inside of the library")
    group.add_argument("--c-interface", action="store_true", help="put the functions of migraphx.h into the library")


def write_library(model: program, args: argparse.Namespace) -> None:
    """Write the library and print its path; errors as in ``program.export_library``."""
    name = args.library_name or _name_of(args.file)
    print(model.export_library(args.library, name, embed_weights=args.embed_weights, c_interface=args.c_interface))


def _name_of(file: str | None) -> str:
    """Return an identifier of C made from a model's file name."""
    name = re.sub(r"\W", "_", Path(file or "model").stem, flags=re.ASCII)
    return name if name[:1].isalpha() else f"model_{name}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    add_inputs(parser)
    add_compile(parser)
    add_output(parser)
    add_library(parser)
    parser.add_argument("--kernels", action="store_true", help="write the kernels' Python source instead")
    parser.add_argument(
        "--plans",
        action="store_true",
        help="write the plans for open lengths instead: their symbols, guards, and the steps of only some lengths",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.library is None:
        for flag in ("library_name", "embed_weights", "c_interface"):
            if getattr(args, flag):
                raise OptionError(f"--{flag.replace('_', '-')} needs --library FOLDER")
    elif args.kernels or args.output or args.form:
        raise OptionError("--library writes a folder of its own: leave out --output, --kernels and the form of output")
    if not (args.kernels or args.plans):
        check_output(args)
    program = load_model(args)
    if args.fill0 or args.fill1 or args.load_arg:
        make_inputs(program, args)  # values do not change what is compiled: only names and files are checked
    model = compile_model(program, args)
    if args.library is not None:
        write_library(model, args)
        return 0
    if args.plans:
        print("\n".join(map(str, model.open_plans())) or "no lengths are open: there is one plan")
        return 0
    if not args.kernels:
        write_model(model, args)
        return 0
    for kernel in model.kernels():
        origin = "".join(f"# {line}\n" for line in kernel.origin.splitlines())
        print(f"# {kernel.name}\n{origin}{kernel.text}")
    return 0
