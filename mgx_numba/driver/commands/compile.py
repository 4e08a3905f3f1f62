"""Compile a model and write the compiled program."""

from __future__ import annotations

import argparse

from ..arguments import add_compile, add_inputs, add_loader, add_output
from ..compiling import compile_model
from ..feeding import make_inputs
from ..library import add_library, check_library, write_library
from ..loading import load_model
from ..writing import check_output, write_model


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
    check_library(args)
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
