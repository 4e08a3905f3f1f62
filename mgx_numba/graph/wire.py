"""Value trees as bytes: msgpack, and the JSON of the same structure.

A tree is made of ``None``, bools, integers of 64 bits, floats, strings, lists, maps with string keys, and blobs. As in
MIGraphX, a blob is an array of ``bin`` chunks in msgpack and ``{"bytes": [...]}`` in JSON. A blob that is too long for
a ``bin`` (4 GiB) follows after the tree, so that it can be mapped as a whole. The tree then holds ``{"tail": offset,
"bytes": length}``, with the offset from the first multiple of 64 after the tree. Non-finite floats are ``NaN``,
``Infinity`` and ``-Infinity`` in JSON, as Python's ``json`` writes them.

Decoding does not trust lengths in the data: no memory is allocated by them, blobs are views of the input, and every
fault raises a ``FormatError`` with its position.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import FormatError

ALIGNMENT = 64
"""Large blobs start at multiples of this many bytes, so that a mapped file gives aligned arrays."""

MAX_DEPTH = 64  # far above real programs, and below Python's recursion limit
LONGEST_BIN = (1 << 32) - 1  # bin 32 of msgpack
_PADDED_FROM = 256  # bytes from which padding, of at most 63, costs little
_PAD = "pad"
_TAIL, _TAIL_KEYS = "tail", ["tail", "bytes"]

Write = Callable[[Any], Any]


class Blob:
    """Bytes that are written from memory without a copy."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data).cast("B") if len(data) else memoryview(b"")


def pack(tree: object, write: Write) -> int:
    """Write a tree as msgpack, piece by piece; return the number of bytes.

    A map that holds a large blob gets an entry ``pad`` before the blob; its length aligns the blob in the output.
    """
    encoder = Encoder(write)
    encoder.value(tree)
    encoder.finish()
    return encoder.written


class Encoder:
    """A msgpack writer.

    Attributes:
        write: takes the bytes, piece by piece.
        written: number of bytes passed to `write`.
    """

    def __init__(self, write: Write) -> None:
        import msgpack

        self.write = write
        self.written = 0
        self._packer = msgpack.Packer(use_bin_type=True, autoreset=True)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._tail: list[memoryview] = []
        self._tail_bytes = 0

    def finish(self) -> None:
        """Write the blobs that follow the tree."""
        for data in self._tail:
            self._put(bytes(-(self.written + self._pending_bytes) % ALIGNMENT))
            self._write_through(data)
        self.flush()

    def _put(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > 1 << 16:
            self.flush()

    def flush(self) -> None:
        """Pass all encoded bytes to `write`."""
        self.write(b"".join(self._pending))
        self.written += self._pending_bytes
        self._pending.clear()
        self._pending_bytes = 0

    def value(self, value: object) -> None:
        """Encode a tree."""
        if isinstance(value, Blob):
            self._blob(value.data)
        elif isinstance(value, dict):
            self._map(value)
        elif isinstance(value, (list, tuple)):
            self._put(self._packer.pack_array_header(len(value)))
            for item in value:
                self.value(item)
        else:
            self._put(self._packer.pack(value))

    def map_header(self, count: int) -> None:
        """Begin a map of ``count`` entries; the caller encodes a key and a value for each."""
        self._put(self._packer.pack_map_header(count))

    def _map(self, value: dict[str, object]) -> None:
        large = next((k for k, v in value.items() if isinstance(v, Blob) and _is_padded(v.data)), None)
        self.map_header(len(value) + (large is not None))
        for key, item in value.items():
            if key == large:
                self._pad(key)
            self._put(self._packer.pack(key))
            self.value(item)

    def _pad(self, key: str) -> None:
        self._put(self._packer.pack(_PAD))
        headers = 2 + len(self._packer.pack(key)) + 1 + 5
        count = -(self.written + self._pending_bytes + headers) % ALIGNMENT
        self._put(self._packer.pack(bytes(count)))

    def _blob(self, data: memoryview) -> None:
        if len(data) > LONGEST_BIN:
            self._map({_TAIL: self._tail_bytes, "bytes": len(data)})
            self._tail.append(data)
            self._tail_bytes += _aligned(len(data))
            return
        self._put(self._packer.pack_array_header(1) + b"\xc6" + struct.pack(">I", len(data)))
        self._write_through(data)

    def _write_through(self, data: memoryview) -> None:
        self.flush()
        self.write(data)
        self.written += len(data)


def _is_padded(data: memoryview) -> bool:
    return _PADDED_FROM <= len(data) <= LONGEST_BIN


def _aligned(position: int) -> int:
    return position + -position % ALIGNMENT


_UNSIGNED = {0xCC: (1, ">B"), 0xCD: (2, ">H"), 0xCE: (4, ">I"), 0xCF: (8, ">Q")}
_SIGNED = {0xD0: (1, ">b"), 0xD1: (2, ">h"), 0xD2: (4, ">i"), 0xD3: (8, ">q")}
_REAL = {0xCA: (4, ">f"), 0xCB: (8, ">d")}
_NUMBER = {
    **{
        code: (size, struct.Struct(form))
        for table in (_UNSIGNED, _SIGNED, _REAL)
        for code, (size, form) in table.items()
    }
}
# Size (bytes) of the length field by first byte, msgpack specification.
_LENGTH = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_ARRAY, _MAP, _STRING, _BINARY = "array", "map", "string", "binary"
_KIND = {0xC4: _BINARY, 0xC5: _BINARY, 0xC6: _BINARY, 0xD9: _STRING, 0xDA: _STRING, 0xDB: _STRING}
_KIND |= {0xDC: _ARRAY, 0xDD: _ARRAY, 0xDE: _MAP, 0xDF: _MAP}
for _code in range(0x80, 0xC0):
    _KIND[_code] = _MAP if _code < 0x90 else _ARRAY if _code < 0xA0 else _STRING

_WHOLE = [1 if c < 0x80 or c >= 0xE0 or c in (0xC0, 0xC2, 0xC3) else 0 for c in range(256)]
"""Total bytes of a value that its first byte determines (0 for other values)."""
for _code, (_number, _) in _NUMBER.items():
    _WHOLE[_code] = 1 + _number
for _code in range(0xA0, 0xC0):
    _WHOLE[_code] = 1 + (_code & 0x1F)


class _Tail:
    """Position of the blobs after the tree (until it is known, beyond the end), and the end of the blobs read so
    far."""

    __slots__ = ("start", "used")

    def __init__(self, end: int) -> None:
        self.start = end
        self.used = 0


class Decoder:
    """A msgpack reader for untrusted ``data``.

    Attributes:
        position: offset of the next value.
    """

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self._data = data
        self._end = len(data)
        self._strings: dict[bytes, str] = {}
        self._tail = _Tail(len(data))
        self.position = position

    def at(self, position: int) -> Decoder:
        """Return a decoder of the same data at another offset."""
        other = Decoder(self._data, position)
        other._strings, other._tail = self._strings, self._tail
        return other

    def end_tree(self) -> None:
        """Mark the end of the tree; the blobs that follow the tree can be read from now on."""
        self._tail.start = self._tail.used = self.position

    @property
    def finished(self) -> bool:
        """Return whether nothing follows the tree and the tail blobs read so far."""
        return max(self.position, self._tail.used) == self._end

    def fail(self, message: str) -> FormatError:
        """Return a ``FormatError`` that names the offset."""
        return FormatError(f"at byte {self.position}: {message}")

    def _header(self) -> tuple[str | None, int]:
        """Read the head of the next container, string or binary; return its kind and length.

        For other values the kind is ``None``, the number is the type code, and nothing is consumed.
        """
        if self.position >= self._end:
            raise self.fail("the data end where a value was expected")
        code = self._data[self.position]
        kind = _KIND.get(code)
        if kind is None:
            return None, code
        size = _LENGTH.get(code, 0)
        if self.position + 1 + size > self._end:
            raise self.fail("the data end inside of a length")
        if size:
            count = int.from_bytes(self._data[self.position + 1 : self.position + 1 + size], "big")
        else:
            count = code & (0x1F if kind is _STRING else 0x0F)
        least = 2 * count if kind is _MAP else count
        if least > self._end - self.position - 1 - size:
            raise self.fail(
                f"{kind} of length {count} is longer than the {self._end - self.position} bytes that follow"
            )
        self.position += 1 + size
        return kind, count

    def value(self, depth: int = 0) -> Any:
        """Return the next value; blobs are memory views.

        Raises:
            FormatError: malformed data, or nesting beyond 64 levels.
        """
        kind, count = self._header()
        if kind is None:
            return self._plain(count)
        if kind is _STRING:
            return self._string(count)
        if kind is _BINARY:
            return self._bytes(count)
        if depth >= MAX_DEPTH:
            raise self.fail(f"values are nested more than {MAX_DEPTH} levels deep")
        if kind is _ARRAY:
            return [self.value(depth + 1) for _ in range(count)]
        result: dict[str, object] = {}
        for _ in range(count):
            key = self._key(result)
            result[key] = self.value(depth + 1)
        if count == 2 and list(result) == _TAIL_KEYS:
            return self._tail_view(result[_TAIL], result["bytes"])
        return result

    def _tail_view(self, offset: object, count: object) -> memoryview:
        start = _aligned(self._tail.start)
        if not isinstance(offset, int) or not isinstance(count, int) or not 0 <= offset <= self._end - start - count:
            raise self.fail("a blob after the tree does not lie inside of the data")
        if count <= LONGEST_BIN:
            raise self.fail("a blob after the tree is shorter than those that lie there")
        self._tail.used = max(self._tail.used, start + offset + count)
        return self._data[start + offset : start + offset + count]

    def entries(self, what: str) -> Iterator[str]:
        """Yield the keys of the next value, a map; the caller reads or skips the value after each key.

        Raises:
            FormatError: the next value is no map, or has a duplicate key.
        """
        seen: dict[str, None] = {}
        for _ in range(self._expect(_MAP, what)):
            key = self._key(seen)
            seen[key] = None
            yield key

    def array(self, what: str) -> int:
        """Return the length of the next value, an array, whose elements the caller reads.

        Raises:
            FormatError: the next value is no array.
        """
        return self._expect(_ARRAY, what)

    def skip(self) -> None:
        """Skip the next value."""
        remaining = 1
        data, end = self._data, self._end
        while remaining:
            if self.position >= end:
                raise self.fail("the data end where a value was expected")
            whole = _WHOLE[data[self.position]]
            remaining -= 1
            if whole:
                self.position += whole
                continue
            kind, count = self._header()
            if kind is _ARRAY:
                remaining += count
            elif kind is _MAP:
                remaining += 2 * count
            elif kind is None:
                raise self.fail(f"unknown type code 0x{count:02x}")
            else:
                self.position += count
        if self.position > end:
            self.position = end
            raise self.fail("the data end inside of a value")

    def _expect(self, wanted: str, what: str) -> int:
        start = self.position
        kind, count = self._header()
        if kind is not wanted:
            self.position = start
            raise self.fail(f"{what} must be a {wanted}")
        return count

    def _key(self, taken: dict[str, Any]) -> str:
        kind, count = self._header()
        if kind is not _STRING:
            raise self.fail("a map has a key that is not a string")
        key = self._string(count)
        if key in taken:
            raise self.fail(f"a map has the key {key!r} twice")
        return key

    def _bytes(self, count: int) -> memoryview:
        start = self.position
        self.position += count
        return self._data[start : self.position]

    def _string(self, count: int) -> str:
        raw = bytes(self._bytes(count))
        found = self._strings.get(raw)
        if found is None:
            try:
                found = raw.decode()
            except UnicodeDecodeError as error:
                raise self.fail(f"a string is not UTF-8: {error.reason}") from None
            if count <= 32:
                self._strings[raw] = found
        return found

    def _plain(self, code: int) -> Any:
        if code < 0x80 or code >= 0xE0:
            self.position += 1
            return code if code < 0x80 else code - 0x100
        if code in (0xC0, 0xC2, 0xC3):
            self.position += 1
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        number = _NUMBER.get(code)
        if number is None:
            raise self.fail(f"unknown type code 0x{code:02x}")
        size, form = number
        if self.position + 1 + size > self._end:
            raise self.fail("the data end inside of a number")
        (value,) = form.unpack_from(self._data, self.position + 1)
        self.position += 1 + size
        return value


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
