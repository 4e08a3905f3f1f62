"""The cache folder, and how files in it are replaced: as a whole or not at all, by any number of processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import time
from pathlib import Path

from .._version import __version__

__all__ = ["ENVIRONMENT", "default_folder", "mark_used", "package_state", "replace_file"]

ENVIRONMENT = "MGX_CACHE_DIR"
_MARK_AFTER_SECONDS = 24 * 3600.0  # a day: uses are told apart by the day, and a file in use is seldom written to
_PACKAGE = Path(__file__).resolve().parent.parent


def default_folder() -> Path:
    """``MGX_CACHE_DIR`` if set, else ``mgx_numba`` in the platform's cache folder."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mgx_numba"


def replace_file(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file of these pieces, as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    from ..graph import atomic_file  # late: a process that finds all it needs writes nothing

    atomic_file.replace_file(path, lambda write: [write(piece) for piece in pieces])


def mark_used(path: Path) -> None:
    """Note that a file was used, at most once a day, so that a hit seldom writes; one that is gone is none."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _MARK_AFTER_SECONDS:
            os.utime(path)


@functools.lru_cache(maxsize=1)
def package_state() -> str:
    """SHA-256 of the version, and of what the system says of every file of this package: sources and tuning records."""
    lines = [__version__]
    folders = [str(_PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                else:
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
