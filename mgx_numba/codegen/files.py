"""The cache folder, and atomic replacement of its files by any number of processes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import time
from io import FileIO
from pathlib import Path

from .._version import __version__
from ..digest import text_digest

ENVIRONMENT = "MGX_CACHE_DIR"
NOT_OF_CPU = frozenset(("driver", "gpu", "library", "ray"))
"""Folders of the package that plans for the CPU do not depend on: a quarter of its files."""
_MARK_AFTER_SECONDS = 24 * 3600.0  # a resolution of one day, so that a file in use is seldom written to
_PACKAGE = Path(__file__).resolve().parent.parent


def default_folder() -> Path:
    """Return ``MGX_CACHE_DIR`` if set, else ``mgx_numba`` in the platform's cache folder."""
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


def make_folder(folder: Path) -> None:
    """Create a cache folder and its missing parents, for this user alone (mode 0700).

    Raises:
        OSError: it cannot be created.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_trusted(path: Path) -> FileIO:
    """Open a cache file for reading if this user or root owns it, since its kernels are executed.

    Raises:
        OSError: it cannot be read, or belongs to another user.
    """
    file = FileIO(path)
    if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
        file.close()
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    return file


def read_trusted(path: Path) -> bytes:
    """Read a cache file completely; see `open_trusted`."""
    with open_trusted(path) as file:
        return file.read()


def replace_file(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file from these pieces atomically.

    Raises:
        OSError: it cannot be written.
    """
    from ..graph import atomic_file  # late: a process with only cache hits writes nothing

    atomic_file.replace_file(path, lambda write: [write(piece) for piece in pieces])


def mark_used(path: Path) -> None:
    """Set the time of a file's last access, at most once a day, so that a hit seldom writes.

    The time of its last change stays. A file that is gone is left alone.
    """
    with contextlib.suppress(OSError):
        status = path.stat()
        if time.time() - status.st_atime > _MARK_AFTER_SECONDS:
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))


@functools.lru_cache(maxsize=2)
def package_state(leave_out: frozenset[str] = frozenset()) -> str:
    """Return a digest of the version and of the file system's metadata of every file of this package: sources and
    tuning records.

    Args:
        leave_out: names of folders that do not count.
    """
    lines = [__version__]
    folders = [str(_PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__" and entry.name not in leave_out:
                        folders.append(entry.path)
                else:
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return text_digest("\n".join(sorted(lines)))
