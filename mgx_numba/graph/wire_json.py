"""The JSON form of value trees: as msgpack's, but a blob is ``{"bytes": [...]}``, read and written in bulk.

Non-finite floats are written ``NaN``, ``Infinity`` and ``-Infinity``, as Python's ``json`` does.
"""

from __future__ import annotations

import json
import re

import numpy as np

from ..errors import FormatError
from .wire import Blob, Write

_CHUNK = 1 << 20  # bytes converted at a time: their decimal text is several times as large
_PLACE = re.compile(r'\{"bytes": \[(\d+)\]\}')
_BYTES = re.compile(rb'\{\s*"bytes"\s*:\s*\[([0-9,\s]*)\]\s*\}')
_SPACE = b" \t\r\n"


def pack_json(tree: object, write: Write) -> None:
    """Write a tree as UTF-8 JSON, piece by piece."""
    blobs: list[memoryview] = []

    def place(value: object) -> dict[str, list[int]]:
        if not isinstance(value, Blob):
            raise TypeError(f"{type(value).__name__} is no part of a value tree")
        blobs.append(value.data)
        return {"bytes": [len(blobs) - 1]}

    # A quote inside a JSON string is escaped, so the placeholders' text occurs nowhere else.
    text = json.dumps(tree, default=place)
    position = 0
    for match in _PLACE.finditer(text):
        write(text[position : match.start()].encode())
        write(b'{"bytes": [')
        _write_numbers(blobs[int(match[1])], write)
        write(b"]}")
        position = match.end()
    write(text[position:].encode())


def _write_numbers(data: memoryview, write: Write) -> None:
    table = [str(n).encode() for n in range(256)]
    for start in range(0, len(data), _CHUNK):
        if start:
            write(b",")
        write(b",".join([table[b] for b in data[start : start + _CHUNK]]))


def unpack_json(data: memoryview) -> object:
    """Return the tree of a JSON text; blobs are memory views.

    Raises:
        FormatError: it is no JSON, or holds integers of more than 64 bits, bytes beyond 255 or a duplicate key.
    """
    blobs: list[memoryview] = []
    pieces: list[bytes] = []
    position = 0
    met = 0
    for match in _BYTES.finditer(data):
        pieces += [bytes(data[position : match.start()]), b'{"bytes":[%d]}' % len(blobs)]
        blobs.append(_read_numbers(data[match.start(1) : match.end(1)], match.start(1)))
        position = match.end()
    pieces.append(bytes(data[position:]))

    def assemble(pairs: list[tuple[str, object]]) -> object:
        nonlocal met
        result = dict(pairs)
        if len(result) != len(pairs):
            raise FormatError("an object has a key twice")
        if list(result) != ["bytes"]:
            return result
        if met >= len(blobs) or result["bytes"] != [met]:
            raise FormatError("'bytes' must be an array of numbers from 0 to 255")
        met += 1
        return blobs[met - 1]

    try:
        return json.loads(b"".join(pieces), object_pairs_hook=assemble, parse_int=_integer)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not JSON: {error}") from None


def _integer(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 64:
        raise FormatError(f"integer {text[:24]} does not fit 64 bits")
    return int(text)


def _read_numbers(text: memoryview, offset: int) -> memoryview:
    """Convert decimal numbers, separated by commas, to bytes."""
    result = bytearray()
    position = 0
    while position < len(text):
        end = min(len(text), position + _CHUNK)
        while end < len(text) and text[end - 1] != 0x2C:
            end += 1
        part = bytes(text[position:end]).translate(None, _SPACE)
        last = end == len(text)
        if part or not last:
            result += _numbers(part if last else part[:-1], offset + position)
        position = end
    return memoryview(bytes(result))


def _numbers(text: bytes, offset: int) -> bytes:
    if not text:
        return b""
    digits = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(digits == 0x2C)
    starts = np.concatenate([[0], commas + 1])
    ends = np.concatenate([commas, [len(text)]])
    lengths = ends - starts
    if lengths.min() < 1 or lengths.max() > 3:
        raise FormatError(f"at byte {offset}: the elements of 'bytes' must be numbers from 0 to 255")
    value = np.zeros(len(starts), np.int64)
    for place in range(3):
        inside = lengths > place
        value[inside] += (digits[ends[inside] - 1 - place].astype(np.int64) - 0x30) * 10**place
    if value.max() > 255:
        raise FormatError(f"at byte {offset}: the elements of 'bytes' must be numbers from 0 to 255")
    return value.astype(np.uint8).tobytes()
