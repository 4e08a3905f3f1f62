"""Files mapped into memory."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Union

from ..errors import FormatError

__all__ = ["FilePath", "map_file"]

FilePath = Union[str, "os.PathLike[str]"]


def map_file(path: FilePath) -> memoryview:
    """The content of a file, read-only; what is no regular file is read.

    Raises:
        FormatError: it cannot be read, or is empty.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return memoryview(file.read())
            if not status.st_size:
                raise FormatError(f"{os.fspath(path)}: the file is empty")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{os.fspath(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
