"""File content, read into private memory.

Files are not memory-mapped. A mapped file that is truncated kills the process that touches the missing pages; one that
is overwritten changes the weights of loaded programs.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Iterator
from io import FileIO
from typing import Union

import numpy as np

from ..core.pages import aligned_bytes
from ..errors import FormatError
from ..parallel import allowed_cpus, on_threads

FilePath = Union[str, "os.PathLike[str]"]

_PIECE_BYTES = 16 << 20
"""Bytes that one thread reads at a time: some milliseconds of work."""
_WINDOW_BYTES = 1 << 14
"""Bytes read for a small piece of a large file: four pages cost about as much as one."""


_seeking = threading.Lock()


def _read_at(file: FileIO, view: memoryview, begin: int) -> int:
    """Read bytes from offset ``begin`` into ``view``, from any thread, and return their number."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], begin)
    with _seeking:  # on Windows
        file.seek(begin)
        return file.readinto(view)


class FileContent:
    """The content of a file, which stays open as long as this object lives; a pipe or device is read at once.

    Attributes:
        size: bytes.
    """

    def __init__(self, path: FilePath) -> None:
        """Open a file.

        Raises:
            OSError: the file cannot be opened.
        """
        self.path = path
        self._whole: weakref.ref[np.ndarray] | None = None
        self._held: np.ndarray | None = None
        self._status: os.stat_result | None = None
        self._file = FileIO(path)  # closed with this
        weakref.finalize(self, self._file.close)
        status = os.fstat(self._file.fileno())
        self._kept = None if stat.S_ISREG(status.st_mode) else np.frombuffer(self._file.read(), np.uint8)
        self.size = status.st_size if self._kept is None else self._kept.size

    @classmethod
    def of_bytes(cls, data: bytes) -> FileContent:
        """Return the content of a file that is already in memory, without a copy."""
        self = cls.__new__(cls)
        self.path, self._whole, self._status = "the model", None, None
        self._kept = self._held = np.frombuffer(data, np.uint8)
        self.size = self._kept.size
        return self

    def hold(self) -> None:
        """Read the whole file, keep it in memory as long as this object lives, and close the file.

        Raises:
            FormatError: as `read`.
        """
        if self._held is None:
            self._held = np.frombuffer(self.whole(), np.uint8)
            self._status = self.status()
            self._file.close()

    @property
    def held(self) -> bool:
        """Whether the whole file is in memory as long as this object lives."""
        return self._held is not None

    def status(self) -> os.stat_result:
        """Return the file's status: the current one, or the status when `hold` had read the file."""
        return os.fstat(self._file.fileno()) if self._status is None else self._status

    def read(self, begin: int, target: np.ndarray) -> None:
        """Fill a contiguous byte array from offset ``begin``; the interpreter's lock is released meanwhile.

        Raises:
            FormatError: the file has become shorter, or cannot be read.
        """
        memory = self._kept if self._held is None else self._held
        if memory is not None:
            target[...] = memory[begin : begin + target.size]
            return
        done, view = 0, target.data
        while done < len(view):
            try:
                count = _read_at(self._file, view[done:], begin + done)
            except OSError as error:
                raise FormatError(f"{os.fspath(self.path)}: cannot be read: {_reason(error)}") from None
            if not count:
                raise FormatError(
                    f"{os.fspath(self.path)}: the file had {self.size} bytes when it was opened and now ends at byte "
                    f"{begin + done}"
                )
            done += count

    def array(self, begin: int, size: int) -> np.ndarray:
        """Return ``size`` bytes from offset ``begin`` as a new read-only array aligned to a cache line; large reads use
        all threads.

        Raises:
            FormatError: as `read`.
        """
        found = aligned_bytes(size)
        if size <= _PIECE_BYTES:
            self.read(begin, found)
        else:
            on_threads(
                lambda at: self.read(begin + at, found[at : at + _PIECE_BYTES]),
                range(0, size, _PIECE_BYTES),
                allowed_cpus(),
            )
        found.flags.writeable = False
        return found

    def whole(self) -> memoryview:
        """Return the whole content, read-only; calls share one buffer as long as some view of it is alive.

        Raises:
            FormatError: as `read`.
        """
        found = self._in_memory()
        if found is None:
            found = self.array(0, self.size)
            self._whole = weakref.ref(found)
        return found.data

    def _in_memory(self) -> np.ndarray | None:
        return self._held if self._held is not None or self._whole is None else self._whole()

    def pieces(self, begin: int, size: int, room: np.ndarray) -> Iterator[memoryview]:
        """Yield ``size`` bytes from offset ``begin`` in pieces, each valid until the next.

        The pieces are views of the buffer of `whole` if that is in memory; otherwise they are read into ``room``.

        Raises:
            FormatError: as `read`.
        """
        found = self._in_memory()
        if found is not None:
            yield found.data[begin : begin + size]
            return
        for at in range(begin, begin + size, room.size):
            part = room[: min(room.size, begin + size - at)]
            self.read(at, part)
            yield part.data


class FileWindow:
    """The bytes of a file as slices; only a small window is in memory."""

    def __init__(self, content: FileContent) -> None:
        self._content = content
        self._begin = 0
        self._bytes = b""

    def __len__(self) -> int:
        return self._content.size

    def __getitem__(self, part: slice) -> bytes:
        """Return a part of the file.

        Raises:
            FormatError: as `FileContent.read`.
        """
        begin, end, _ = part.indices(self._content.size)
        if self._begin <= begin and end <= self._begin + len(self._bytes):
            return self._bytes[begin - self._begin : end - self._begin]
        return self._content.array(begin, max(0, end - begin)).tobytes()

    def near(self, position: int, count: int) -> tuple[bytes, int]:
        """Return bytes of the file and the offset of the first. They hold ``count`` bytes from ``position`` on, or all
        up to the end of the file.

        Raises:
            FormatError: as `FileContent.read`.
        """
        at, ready = position - self._begin, self._begin + len(self._bytes)
        if at < 0 or (position + count > ready and ready < self._content.size):
            self._bytes = self[position : position + _WINDOW_BYTES]
            self._begin = position
        return self._bytes, self._begin


def open_content(path: FilePath) -> FileContent:
    """Open a file and return its content.

    Raises:
        FormatError: the file cannot be opened, or is empty.
    """
    try:
        content = FileContent(path)
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {_reason(error)}") from None
    if not content.size:
        raise FormatError(f"{os.fspath(path)}: the file is empty")
    return content


def read_bytes(path: FilePath) -> memoryview:
    """Return all bytes of a file, in read-only memory.

    Raises:
        FormatError: the file cannot be read, or is empty.
    """
    return open_content(path).whole()


def _reason(error: Exception) -> str:
    """Return the system's error message without the error number and the file's name."""
    return getattr(error, "strerror", None) or str(error)
