"""Checksums of the sections of a msgpack ``.mxr`` file.

The sections follow each other without gaps. ``header`` is everything before the first module. Each module, the machine
code and the library follow, each beginning with its key. The last entry of the file's map lists
``[name, end, checksums]`` for each section: ``end`` is the offset of the section's last byte plus 1, ``checksums`` are
the CRC-32 of each piece of 16 MiB. Tensors of more than 4 GiB, which follow the map, are not checked: they may be
memory-mapped and are read in parts.

CRC-32 finds every change of up to 32 bits in a row, and takes 17 ms for 100 MB on one core of a Zen 5.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any

from ..errors import FormatError
from ..json_types import JsonObject
from ..parallel import allowed_cpus, on_threads
from .wire import Encoder, Write

CHECKSUMS = "mgx_numba_checksums"
"""Key of the checksums in the file's map."""
_HEADER, _MODULES = "header", "modules"
_PIECE_BYTES = 16 << 20
"""Bytes that a thread checks at a time: about 3 ms of work."""


class _ChecksumWriter:
    """A writer that passes bytes on to ``write`` and accumulates the checksums of the current section."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._sums: list[int] = []
        self._room = 0

    def __call__(self, data: Any) -> None:
        self._write(data)
        view = memoryview(data)
        while len(view):
            if not self._room:
                self._sums.append(0)
                self._room = _PIECE_BYTES
            part = view[: self._room]
            self._sums[-1] = zlib.crc32(part, self._sums[-1])
            self._room -= len(part)
            view = view[len(part) :]

    def taken(self) -> list[int]:
        """Return the checksums of the current section, and begin the next section."""
        sums, self._sums, self._room = self._sums, [], 0
        return sums


def pack_sections(tree: JsonObject, write: Write) -> int:
    """Write a file's map as msgpack with the checksums of its sections; return the number of bytes."""
    summing = _ChecksumWriter(write)
    encoder = Encoder(summing)
    sections: list[list[object]] = []

    def end(name: str) -> None:
        encoder.flush()
        sections.append([name, encoder.written, summing.taken()])

    encoder.map_header(len(tree) + 1)
    for key, value in tree.items():
        encoder.value(key)
        if key == _MODULES:
            encoder.map_header(len(value))
            end(_HEADER)
            for name, module in value.items():
                encoder.value(name)
                encoder.value(module)
                end(f"module {name!r}")
        else:
            encoder.value(value)
            if sections:
                end(key)
    encoder.write = write
    encoder.value(CHECKSUMS)
    encoder.value(sections)
    encoder.finish()
    return encoder.written


def check_sections(data: memoryview, sections: Any, passed_over: Collection[str] = (), only: str = "") -> None:
    """Compare the sections of a file with their checksums.

    Args:
        data: the file.
        sections: the entry `CHECKSUMS` of the file's map.
        passed_over: names of sections that are not checked.
        only: the name of the single section to check; "" for all.

    Raises:
        FormatError: a section is damaged (the message names the section), or the entry is malformed.
    """
    pieces: list[tuple[str, int, int, int]] = []
    begin = 0
    try:
        for name, end, sums in sections:
            if (
                not isinstance(name, str)
                or not begin <= end <= len(data)
                or len(sums) != -(-(end - begin) // _PIECE_BYTES)
            ):
                raise ValueError(name)
            if name not in passed_over and name == (only or name):
                starts = range(begin, end, _PIECE_BYTES)
                pieces += [(name, at, min(at + _PIECE_BYTES, end), found) for at, found in zip(starts, sums)]
            begin = end
    except (TypeError, ValueError):
        raise FormatError(f"'{CHECKSUMS}' is damaged") from None
    damaged: list[str] = []

    def check(piece: tuple[str, int, int, int]) -> None:
        name, first, last, wanted = piece
        if zlib.crc32(data[first:last]) != wanted:
            damaged.append(name)

    on_threads(check, pieces, allowed_cpus())
    if damaged:
        names = sorted(set(damaged))
        raise FormatError(f"damaged: {', '.join(names)} ({'its' if len(names) == 1 else 'their'} checksum differs)")
