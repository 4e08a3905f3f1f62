"""Checksums of the sections of a msgpack ``.mxr`` file.

The sections follow each other without gaps: ``header`` is all before the first module, then each module, the machine
code and the library follow, each from its key on. The last entry of the file's map has ``[name, end, checksums]`` for
each section, where ``end`` is the offset of its last byte plus 1, and the checksums are the CRC-32 of each piece of
16 MiB. Single tensors of more than 4 GiB, which follow the map, are not checked: they may be mapped, and are read in
parts.
CRC-32 finds every change of up to 32 bits in a row, and takes 17 ms for 100 MB on one core of a Zen 5.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import FormatError
from ..parallel import allowed_cpus, on_threads
from .wire import Encoder, Write

__all__ = ["CHECKSUMS", "check_sections", "pack_sections"]

CHECKSUMS = "mgx_numba_checksums"
"""Key of the checksums in the file's map."""
_HEADER, _MODULES = "header", "modules"
_PIECE_BYTES = 16 << 20
"""What one thread checks at a time: some milliseconds of work."""


class _Summing:
    """Passes bytes on to ``write`` and sums up those of the current section."""

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
        """Return the checksums of the section that ends here; the next section begins."""
        sums, self._sums, self._room = self._sums, [], 0
        return sums


def pack_sections(tree: Mapping[str, Any], write: Write) -> int:
    """Write a file's map as msgpack with the checksums of its sections; return the number of bytes."""
    summing = _Summing(write)
    encoder = Encoder(summing)
    sections: list[list[Any]] = []

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
        sections: the entry `CHECKSUMS` of its map.
        passed_over: names of sections that are not read.
        only: the section that is read, if it is a single one.

    Raises:
        FormatError: a section is damaged, which the message names, or the entry is malformed.
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
