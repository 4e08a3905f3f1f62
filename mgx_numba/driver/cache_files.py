"""The files of the cache folder, by kind of content."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_KINDS = {
    "kernels": ("objects/*.o", "objects/*.json"),
    "plans": ("plans/*/*.plan",),
    "models": ("plans/models/*.json",),
    "tuning records": ("tuning.sqlite*",),
}
"""Patterns of file names in the cache folder, by kind of content."""


def cache_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files in a cache folder, by kind."""
    return {kind: [path for pattern in patterns for path in folder.glob(pattern)] for kind, patterns in _KINDS.items()}


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if it is gone."""
    with contextlib.suppress(OSError):  # another process may remove it
        return os.path.getsize(path)
    return 0


def content(folder: Path) -> dict[str, str]:
    """Return the number of files and their size, in words, by kind."""
    return {
        kind: f"{len(paths)} files, {sum(map(size_of, paths)) / 1e6:.1f} MB"
        for kind, paths in cache_files(folder).items()
    }
