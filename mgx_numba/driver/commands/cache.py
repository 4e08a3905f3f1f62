"""List kernels, plans, models and tuning records in the cache folder with their sizes, or clear the folder."""

from __future__ import annotations

import argparse

from ...codegen.files import default_folder
from ...errors import OptionError
from ..cache_files import cache_files, content, size_of

_CLEARED = {"kernels": ("kernels",), "plans": ("plans", "models"), "all": ("kernels", "plans", "models")}
"""Kinds that ``--clear`` removes; never tuning records, which are costly to measure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--clear",
        choices=tuple(_CLEARED),
        nargs="?",
        const="all",
        help="remove compiled kernels, or the plans of models and what is known of these, or all (default); "
        "tuning records stay",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        OptionError: a file cannot be removed.
    """
    folder = default_folder()
    if args.clear is None:
        print(folder)
        for kind, told in content(folder).items():
            print(f"{kind}: {told}")
        return 0
    found = cache_files(folder)
    paths = [path for kind in _CLEARED[args.clear] for path in found[kind]]
    freed = sum(map(size_of, paths))
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OptionError(f"{path} cannot be removed: {error.strerror or error}") from error
    print(f"removed {len(paths)} files, {freed / 1e6:.1f} MB, from {folder}")
    return 0
