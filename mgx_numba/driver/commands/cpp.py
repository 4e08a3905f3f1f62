"""Print the folder of MIGraphX's C and C++ headers and of the CMake package migraphx."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...errors import FormatError
from ...runtime.cpu.library import CPP_PREFIX
from ...runtime.cpu.library.linking import link_c_interface


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("--flags", action="store_true", help="print flags of a compiler instead of CMAKE_PREFIX_PATH")
    parser.add_argument(
        "--c",
        metavar="FOLDER",
        help="build libmigraphx_c.so, MIGraphX's C interface, there; print flags for C programs",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.c is not None:
        folder = Path(args.c).resolve()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FormatError(f"--c {args.c}: no folder can be made: {error.strerror or error}") from None
        link_c_interface(folder)
        print(f"-I{CPP_PREFIX / 'include'} -L{folder} -Wl,-rpath,{folder} -lmigraphx_c")
        return 0
    print(f"-I{CPP_PREFIX / 'include'} -pthread -ldl" if args.flags else CPP_PREFIX)
    return 0
