"""Transport of requests and answers over a stream: msgpack values prefixed by their length (8 bytes, little-endian)."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgpack

from ...errors import FormatError

_LENGTH = struct.Struct("<Q")


def receive(stream: BinaryIO) -> dict[str, object] | None:
    """Return the next request; None at the end of the stream.

    Raises:
        FormatError: the request is malformed, or the stream ends inside it.
    """
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head.ljust(_LENGTH.size, b"\0"))
    body = stream.read(length)
    if len(head) < _LENGTH.size or len(body) < length:
        raise FormatError("a request ends early")
    try:
        found = msgpack.unpackb(body, max_bin_len=length, max_str_len=length)
    except (ValueError, msgpack.UnpackException) as error:
        raise FormatError(f"a request is malformed: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("do"), str):
        raise FormatError("a request must be a map that says what is to be done")
    return found


def send(stream: BinaryIO, answer: dict[str, object]) -> None:
    """Write an answer."""
    body = msgpack.packb(answer, use_bin_type=True)
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()
