"""Compile a model and explain how an instruction or a node of the model was compiled, and why."""

from __future__ import annotations

import argparse

from ...errors import OptionError
from ...targets.registry import target
from ..arguments import add_compile, add_inputs, add_loader
from ..compiling import compile_model
from ..feeding import make_inputs
from ..loading import file_type, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    add_loader(parser)
    parser.add_argument("name", nargs="?", help="a node of the model, an instruction (@12), or an operator")
    add_compile(parser)
    add_inputs(parser)
    parser.add_argument("-n", "--iterations", type=int, default=0, metavar="N", help="measure so many runs (default 0)")
    parser.add_argument("--source", action="store_true", help="print the kernels' Python source, too")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.iterations < 0:
        raise OptionError(f"--iterations is {args.iterations}, expected 0 or more")
    if args.name is None and args.file_type == "test":
        args.file, args.name = None, args.file
    if args.name is None:
        raise OptionError("explain needs a model file and the name of a node, an instruction or an operator")
    args.debug_symbols |= file_type(args) == "onnx"
    model = load_model(args)
    inputs = make_inputs(model, args)
    compile_model(model, args)
    found = model.explain(args.name, inputs, args.iterations)
    print("\n\n".join(map(str, found)))
    own = model.compile_target
    record = None if own is None else (target(own.name()).machine() or {}).get("record")
    if record:
        print(f"\nmachine record: {record}")
    if args.source:
        wanted = {step.symbol for one in found for step in one.steps}
        for kernel in model.kernels():
            if kernel.symbol in wanted:
                print(f"\n# {kernel.name}\n{kernel.text}", end="")
    return 0
