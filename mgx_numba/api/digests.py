"""Digests of the contents of files; the digest of a large unchanged file is cached in the cache folder.

``<cache folder>/plans/seen/<key>.txt`` holds the digest of a file by its identity and times, as in build tools: device,
inode, size, modification time, and change time (ctime), which no program can set. The digest is not cached if the file
was written shortly before it was read: another write might leave the times as they are.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from pathlib import Path

import numpy as np

from ..codegen.files import default_folder, make_folder, mark_used, read_trusted, replace_file
from ..digest import digest, new_digest, text_digest
from ..graph.content import FileContent
from ..parallel import allowed_cpus, on_threads

_PIECE_BYTES = 8 << 20
"""Bytes that one thread hashes at a time: some milliseconds of work, so that threads finish together."""
_ROOM_BYTES = 256 << 10
"""Bytes that are read and hashed at a time: as many as stay in a core's own cache."""
REMEMBERED_BYTES = 1 << 20
"""Size from which digests are cached. Hashing 1 MiB takes half a millisecond on a CPU with SHA instructions."""
TICK = 20_000_000
"""Resolution of file times in ns: two of the system's ticks at 100 Hz."""
COARSE_TICK = 2_000_000_000
"""Resolution (ns) on file systems that store times in whole seconds, or in units of two seconds (FAT)."""


def plans_folder() -> Path:
    """Return the folder of plans and of model metadata."""
    return default_folder() / "plans"


def file_digest(content: FileContent, opened: os.stat_result | None, ended: threading.Event | None = None) -> str:
    """Return `content_digest`, from the cache if the file has not changed since it was hashed.

    Args:
        opened: the file's status before any of it was read; None if the content is not a file.
        ended: once this event is set, the result is not used, and hashing may stop.

    Raises:
        FormatError: the file has become shorter.
    """
    if opened is None or content.size < REMEMBERED_BYTES:
        return content_digest(content, ended)
    now = time.time_ns()
    key = text_digest(f"{state_of(opened)} {content.size}")[:32]
    path = plans_folder() / "seen" / f"{key}.txt"
    with contextlib.suppress(OSError):
        known = read_trusted(path).decode("ascii", "replace")
        if re.fullmatch("[0-9a-f]{64}", known) and state_of(content.status()) == state_of(opened):
            mark_used(path)
            return known
    found = content_digest(content, ended)
    if ended is None or not ended.is_set():
        latest = max(opened.st_mtime_ns, opened.st_ctime_ns)
        if latest + COARSE_TICK < now and state_of(content.status()) == state_of(opened):
            with contextlib.suppress(OSError):
                make_folder(path.parent)
                replace_file(path, found.encode())
    return found


def content_digest(content: FileContent, ended: threading.Event | None = None) -> str:
    """Return the digest of the concatenated digests of each piece of a content, computed on all cores.

    Of large contents the digests of pieces are SHA-256, for which CPUs have instructions.

    Args:
        ended: once this event is set, the remaining pieces are skipped.

    Raises:
        FormatError: the file has become shorter.
    """
    starts = range(0, content.size, _PIECE_BYTES)
    found: list[bytes] = [b""] * len(starts)

    new = new_digest
    if content.size >= REMEMBERED_BYTES:
        import hashlib  # late: it loads OpenSSL

        new = hashlib.sha256

    def work(number: int) -> None:
        piece_digest = new()
        if ended is None or not ended.is_set():
            size = min(_PIECE_BYTES, content.size - starts[number])
            for piece in content.pieces(starts[number], size, np.empty(min(size, _ROOM_BYTES), np.uint8)):
                piece_digest.update(piece)
        found[number] = piece_digest.digest()

    on_threads(work, range(len(starts)), allowed_cpus())
    return digest(b"".join(found)).hex()


def state_of(status: os.stat_result) -> str:
    """Return a file's device, inode, size and times as text; writing or replacing the file changes it.

    The change time also reveals a restored modification time.
    """
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def may_have_changed(status: os.stat_result, since: int) -> bool:
    """Return whether a write at time ``since`` (ns) or later may have left the file's times unchanged."""
    latest = max(status.st_mtime_ns, status.st_ctime_ns)
    return latest + (TICK if latest % 1_000_000_000 else COARSE_TICK) >= since
