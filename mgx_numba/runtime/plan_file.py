"""Files of plans, for processes on the same machine that need the same plans at once.

A file is a head (magic, length and digest of what follows), JSON, and the plans' arrays, each at a multiple of 64
bytes. The hash protects the JSON, which holds a CRC-32 of each piece of the arrays; the length shows that the file is
complete. A plan tells the machine what to compute on which addresses. So a file may be read only from the cache folder,
from which kernels are read too.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import IO

import numpy as np

from ..core.types import numpy_dtype
from ..digest import digest
from ..errors import FormatError, UnsupportedError
from ..json_types import JsonObject
from .memory import scratch
from .plan_json import HostReader, PlansReader, PlansWriter

_HEAD = struct.Struct("<8sQ32s")
_MAGIC = b"mgxplan6"
_ALIGNMENT = 64  # bytes of a cache line
LARGE = 1 << 20
"""Least total size of arrays (bytes) for which the file is mapped: reading as many bytes takes a tenth of a
millisecond."""
_PIECE_BYTES = 16 << 20
"""Size of a piece (bytes), which is read and checked at once: several milliseconds."""


def file_pieces(writer: PlansWriter, about: Mapping[str, object], content: object) -> list[bytes | memoryview]:
    """Return the pieces of a file, in order.

    Args:
        writer: the writer of the plans in ``content``.
        about: JSON values stored beside the content.
        content: JSON values.

    Raises:
        UnsupportedError: an array has elements that no file can hold.
    """
    plain = [array for array in writer.arrays if not array.dtype.hasobject]
    offsets, size, pieces = constant_pieces(plain)
    places = iter(offsets)
    arrays = [[a.dtype.name, a.shape, _texts(a) if a.dtype.hasobject else next(places)] for a in writer.arrays]
    content = {"about": about, "content": content, "common": writer.common(), "arrays": arrays}
    content |= {"bytes": size, "sums": _sums(pieces)}
    body = json.dumps(content, default=int).encode()
    body += b" " * (-(len(body) + _HEAD.size) % _ALIGNMENT)
    return [_HEAD.pack(_MAGIC, len(body), digest(body)), body, *pieces]


def constant_pieces(constants: Sequence[np.ndarray]) -> tuple[list[int], int, list[bytes | memoryview]]:
    """Return the layout of constants in a file, each at a multiple of 64 bytes.

    Returns:
        the offsets of the constants, their total size in bytes, and their contents with padding, in order.
    """
    offsets, size = [], 0
    pieces: list[bytes | memoryview] = []
    for array in constants:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        offsets.append(size)
        pieces += [flat.data, bytes(-flat.size % _ALIGNMENT)]
        size += flat.size + len(pieces[-1])
    return offsets, size, pieces


def _texts(array: np.ndarray) -> list[str]:
    """Return the elements of an array of strings."""
    found = array.reshape(-1).tolist()
    if not all(isinstance(element, str) for element in found):
        raise UnsupportedError("arrays of Python's objects are in no file, but of strings")
    return found


def _sums(pieces: Sequence[bytes | memoryview]) -> list[int]:
    """Return the CRC-32 of each `_PIECE_BYTES` of the concatenated pieces."""
    sums: list[int] = []
    room = 0
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            if not room:
                sums.append(0)
                room = _PIECE_BYTES
            part, view = view[:room], view[room:]
            sums[-1] = zlib.crc32(part, sums[-1])
            room -= len(part)
    return sums


class PlanFile:
    """An open file of plans.

    Attributes:
        about: JSON values stored beside the plans.
        content: JSON values of the content; `plans` reads the plans in it.
        is_large: whether the arrays are large enough for a mapping, which keeps the file open, or for a reading thread.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """Read the head and the JSON of an unbuffered file from its start; the file stays open.

        Raises:
            FormatError: the file is no plan file, or is damaged.
        """
        magic, length, expected = _HEAD.unpack(_exactly(file, _HEAD.size))
        if magic != _MAGIC or length > os.fstat(file.fileno()).st_size:
            raise FormatError("not a plan file of this version")
        body = _exactly(file, length)
        if digest(body) != expected:
            raise FormatError("the plan file is damaged")
        found = json.loads(body)
        self.about: JsonObject = found["about"]
        self.content = found["content"]
        self._common, self._arrays, self._sums = found["common"], found["arrays"], found["sums"]
        self._bytes: int = found["bytes"]
        self.is_large = self._bytes >= LARGE
        if os.fstat(file.fileno()).st_size != _HEAD.size + length + self._bytes:
            raise FormatError("the plan file has another length than it says")
        self._file, self._start = file, _HEAD.size + length

    def allocate(self) -> np.ndarray:
        """Return uninitialised memory for all arrays, with huge pages where they help."""
        return scratch(self._bytes)

    def mapped(self) -> np.ndarray:
        """Return the memory of all arrays as a read-only mapping of the file, which processes share.

        The CRCs are not checked: the file must be known to be unchanged since it was written, and must not change. It
        may be removed.

        Raises:
            OSError: the file cannot be mapped.
        """
        pages = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, np.uint8)[self._start :]

    def fill(self, block: np.ndarray, ended: threading.Event | None = None) -> None:
        """Read all arrays into the memory that `allocate` returned, without holding the interpreter's lock.

        Reading stops early once ``ended`` is set.

        Raises:
            FormatError: the file has become shorter, or is damaged.
        """
        for number, expected in enumerate(self._sums):
            if ended is not None and ended.is_set():
                return
            piece = block.data[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES]
            done = 0
            while done < len(piece):
                count = self._file.readinto(piece[done:])  # type: ignore[attr-defined]
                if not count:
                    raise FormatError("the plan file ends early")
                done += count
            if zlib.crc32(piece) != expected:
                raise FormatError("the plan file is damaged")

    def array(self, block: np.ndarray, number: int) -> np.ndarray:
        """Return an array, by `PlansWriter.array`'s number, in the memory that `allocate` returned."""
        return _array(block, *self._arrays[number])

    def plans(self, block: np.ndarray, host: HostReader) -> PlansReader:
        """Return a reader of plans over the memory that `allocate` returned; the memory may be filled later.

        ``host`` reads fallback steps.
        """
        return PlansReader(self._common, [_array(block, *entry) for entry in self._arrays], host)


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise FormatError("the plan file ends early")
    return data


def _array(block: np.ndarray, dtype: str, lens: list[int], place: int | list[str]) -> np.ndarray:
    if isinstance(place, int):
        return np.ndarray(tuple(lens), numpy_dtype(dtype), block, place)
    made = np.empty(len(place), object)
    made[:] = place
    return made.reshape(lens)
