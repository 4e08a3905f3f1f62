"""What files hold, read into memory of one's own.

Nothing is mapped: a file that is cut off after it was mapped kills the process that touches what is missing, and one
that is written to in place changes the weights of programs that were loaded from it.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterator
from typing import Any, Union

import numpy as np

from ..errors import FormatError
from ..parallel import allowed_cpus, on_threads

__all__ = ["FileContent", "FilePath", "FileWindow", "open_content", "read_bytes"]

FilePath = Union[str, "os.PathLike[str]"]

_ALIGNMENT = 64  # bytes of a cache line
_PIECE_BYTES = 16 << 20
"""What one thread reads at a time: some milliseconds' work."""
_WINDOW_BYTES = 1 << 14
"""Read for a small piece of a large file: four pages cost about as much as one."""


class FileContent:
    """The content of a file that is open as long as this lives; what is no regular file is read at once.

    Attributes:
        size: bytes.
    """

    def __init__(self, path: FilePath) -> None:
        """
        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        self._whole: weakref.ref[np.ndarray] | None = None
        self._held: np.ndarray | None = None
        self._status: os.stat_result | None = None
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this)
        weakref.finalize(self, self._file.close)
        status = os.fstat(self._file.fileno())
        self._kept = None if stat.S_ISREG(status.st_mode) else np.frombuffer(self._file.read(), np.uint8)
        self.size = status.st_size if self._kept is None else self._kept.size

    @classmethod
    def of_bytes(cls, data: bytes) -> FileContent:
        """Return the content of a file that is in memory already; it is not copied."""
        self = cls.__new__(cls)
        self.path, self._whole, self._status = "the model", None, None
        self._kept = self._held = np.frombuffer(data, np.uint8)
        self.size = self._kept.size
        return self

    def hold(self) -> None:
        """Read all of it into memory for as long as this lives, and close the file.

        Raises:
            FormatError: as `read`.
        """
        if self._held is None:
            self._held = np.frombuffer(self.whole(), np.uint8)
            self._status = self.status()
            self._file.close()

    @property
    def held(self) -> bool:
        """Whether all of it is in memory for as long as this lives."""
        return self._held is not None

    def status(self) -> os.stat_result:
        """Return the status of the file: now, or when `hold` had read it."""
        return os.fstat(self._file.fileno()) if self._status is None else self._status

    def read(self, begin: int, target: np.ndarray) -> None:
        """Fill a contiguous array of bytes with those from ``begin`` on; the interpreter's lock is free meanwhile.

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
                count = os.preadv(self._file.fileno(), [view[done:]], begin + done)
            except OSError as error:
                raise FormatError(f"{os.fspath(self.path)}: cannot be read: {_reason(error)}") from None
            if not count:
                raise FormatError(
                    f"{os.fspath(self.path)}: the file had {self.size} bytes when it was opened and now ends at byte "
                    f"{begin + done}"
                )
            done += count

    def array(self, begin: int, size: int) -> np.ndarray:
        """Bytes from ``begin`` on as a new read-only array that starts on a cache line; many are read by all threads.

        Raises:
            FormatError: as `read`.
        """
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        first = -memory.__array_interface__["data"][0] % _ALIGNMENT
        found = memory[first : first + size]
        on_threads(
            lambda at: self.read(begin + at, found[at : at + _PIECE_BYTES]),
            range(0, size, _PIECE_BYTES),
            allowed_cpus(),
        )
        found.flags.writeable = False
        return found

    def whole(self) -> memoryview:
        """All of it, read-only; the same memory as long as something of it is in use.

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
        """Bytes from ``begin`` on, one piece after the other, each valid until the next: what `whole` gave if that is
        in memory, else read into ``room``.

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
    """The bytes of a file as a sequence, of which a few at a time are in memory."""

    def __init__(self, content: FileContent) -> None:
        self._content = content
        self._begin = 0
        self._bytes = b""

    def __len__(self) -> int:
        return self._content.size

    def __getitem__(self, key: Any) -> Any:
        """A byte as a number, or a slice as bytes.

        Raises:
            FormatError: as `FileContent.read`.
        """
        if isinstance(key, slice):
            begin, end, _ = key.indices(self._content.size)
            return self._content.array(begin, max(0, end - begin)).tobytes()
        at = key - self._begin
        if not 0 <= at < len(self._bytes):
            self._begin, at = key, 0
            self._bytes = self[key : key + _WINDOW_BYTES]
        return self._bytes[at]


def open_content(path: FilePath) -> FileContent:
    """The content of a file.

    Raises:
        FormatError: it cannot be opened, or is empty.
    """
    try:
        content = FileContent(path)
    except (OSError, ValueError) as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {_reason(error)}") from None
    if not content.size:
        raise FormatError(f"{os.fspath(path)}: the file is empty")
    return content


def read_bytes(path: FilePath) -> memoryview:
    """All bytes of a file in memory, read-only.

    Raises:
        FormatError: it cannot be read, or is empty.
    """
    return open_content(path).whole()


def _reason(error: Exception) -> str:
    """What the system says of a file, without its number and the file's name."""
    return getattr(error, "strerror", None) or str(error)
