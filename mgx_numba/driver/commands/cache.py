"""List kernels, plans, models and tuning records in the cache folder with their sizes, or clear the folder."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from ...codegen.files import default_folder
from ...errors import OptionError

_KINDS = {
    "kernels": ("objects/*.o", "objects/*.json"),
    "plans": ("plans/*/*.plan",),
    "models": ("plans/models/*.json",),
    "tuning records": ("tuning.sqlite*",),
}
"""Patterns of file names in the cache folder, by kind of content."""
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
    found = {kind: [path for pattern in patterns for path in folder.glob(pattern)] for kind, patterns in _KINDS.items()}
    if args.clear is None:
        print(folder)
        for kind, paths in found.items():
            print(f"{kind}: {len(paths)} files, {sum(map(_size, paths)) / 1e6:.1f} MB")
        return 0
    paths = [path for kind in _CLEARED[args.clear] for path in found[kind]]
    freed = sum(map(_size, paths))
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OptionError(f"{path} cannot be removed: {error.strerror or error}") from error
    print(f"removed {len(paths)} files, {freed / 1e6:.1f} MB, from {folder}")
    return 0


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):  # another process may remove it
        return os.path.getsize(path)
    return 0
