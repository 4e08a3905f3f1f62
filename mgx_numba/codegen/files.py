"""The cache folder, and how files in it are replaced: as a whole or not at all, by any number of processes."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path

from .._version import __version__

__all__ = ["ENVIRONMENT", "default_folder", "package_state", "replace_file"]

ENVIRONMENT = "MGX_CACHE_DIR"
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
