"""Atomic replacement of files by any number of processes, without leftover temporary files.

On Linux the temporary file has no name, so it disappears with a process that dies. A process that dies between naming
the file and moving it into place leaves the named file. On systems without nameless files, any process that dies while
writing leaves it. Such leftovers are removed when the same file is next written durably: no process holds their lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

Write = Callable[[Any], Any]
_BINARY = getattr(os, "O_BINARY", 0)
"""Without it Windows writes a carriage return before each byte 10."""
_ABANDONED_SECONDS = 60.0
"""Age (s) below which an unlocked file is not abandoned: its writer may have created but not locked it yet."""
_PIECE_BYTES = 64 << 20
"""Bytes per write call: some hundredths of a second."""
_KEPT = 48
"""Characters of the target's name in a temporary name, up to 4 bytes each: names have at most 255 bytes."""


def replace_file(
    path: str | os.PathLike[str], fill: Callable[[Write], object], mode: int = 0o600, durable: bool = False
) -> None:
    """Write a file by ``fill(write)`` and move it to ``path``; a device or a pipe is written in place.

    Args:
        path: the file that is replaced or created.
        fill: passes the content to ``write``, piece by piece. It may be called twice.
        mode: permissions of a new file, less the process's mask; a replaced file keeps its permissions.
        durable: whether content and name are on the disk on return, and abandoned temporary files are removed.

    Raises:
        OSError: the file cannot be written; the old file is unchanged. The error names ``path`` or the missing folder.
    """
    if _is_device(path):
        with open(path, "wb") as file:
            fill(file.write)
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder}", os.fspath(path))
    prefix = f".{name[:_KEPT]}."
    temporary = os.path.join(folder, f"{prefix}{os.urandom(8).hex()}.tmp")
    if durable:
        _remove_abandoned(folder, prefix)
    try:
        try:
            _write(_unnamed(folder, mode), target, fill, durable, lambda handle: _give_name(handle, temporary))
        except OSError:  # nameless files are unsupported, or the disk is full
            named = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
            _write(named, target, fill, durable, lambda handle: None)
        os.replace(temporary, target)
    except OSError as error:
        if error.filename == temporary:  # the caller does not know the temporary name
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    if durable:
        _sync_folder(folder)


def _is_device(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a device or a pipe (``/dev/null``), which a file cannot replace."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _unnamed(folder: str, mode: int) -> int:
    if not hasattr(os, "O_TMPFILE"):
        raise OSError(errno.EOPNOTSUPP, "files without a name")
    return os.open(folder, os.O_WRONLY | os.O_TMPFILE, mode)


def _write(
    handle: int, target: str, fill: Callable[[Write], object], durable: bool, finish: Callable[[int], None]
) -> None:
    with os.fdopen(handle, "wb") as file:
        _lock(handle)
        if hasattr(os, "fchmod"):  # not on Windows
            with contextlib.suppress(FileNotFoundError):  # before writing: the content may be confidential
                os.fchmod(handle, os.stat(target).st_mode & 0o777)
        fill(lambda data: _write_pieces(file, data))
        file.flush()
        if durable:
            os.fsync(handle)
        finish(handle)


def _write_pieces(file: IO[bytes], data: Any) -> None:
    """Write bytes in pieces, so that an interrupt waits for one system call, not for the whole file."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    for at in range(0, len(view), _PIECE_BYTES):
        file.write(view[at : at + _PIECE_BYTES])


def _give_name(handle: int, name: str) -> None:
    folder = os.open(os.path.dirname(name), os.O_RDONLY)
    try:
        # Python follows the link only if a folder descriptor is given.
        os.link(f"/proc/self/fd/{handle}", os.path.basename(name), dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _lock(handle: int) -> bool:
    """Try to lock a file for this process; return whether it succeeded. The lock ends with the last descriptor."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or the file system has no locks
        return False
    return True


def _remove_abandoned(folder: str, prefix: str) -> None:
    temporary = re.compile(re.escape(prefix) + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if temporary.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    handle = os.open(entry.path, os.O_RDONLY)
                    try:
                        old = time.time() - os.fstat(handle).st_mtime > _ABANDONED_SECONDS
                        if old and _lock(handle):
                            os.unlink(entry.path)
                    finally:
                        os.close(handle)


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
