"""Location of large tensors in a serialised ModelProto, without copying them.

Only the fields on the path to an initializer's ``raw_data`` are visited (protobuf wire format: a varint key, then a
varint, 8 bytes, a length-prefixed run, or 4 bytes). The result is the model without those bytes, to be decoded by
protobuf, and the location of each tensor, so that literals can borrow the file's memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...dataclass import dataclass
from ...errors import ParseError
from ...graph.content import FileWindow

MODEL_GRAPH, GRAPH_INITIALIZER, TENSOR_RAW_DATA = 7, 5, 9  # field numbers in onnx.proto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
VARINT_BYTES = 10  # of the longest varint, by protobuf's specification


@dataclass(frozen=True)
class ByteRange:
    """Bytes ``[begin, end)`` of a serialized model."""

    begin: int
    end: int


def split_raw_data(data: bytes | memoryview | FileWindow, smallest: int = 1024) -> tuple[bytes, dict[int, ByteRange]]:
    """Return the model without its large ``raw_data``, and the location of that data.

    Args:
        data: a serialised ModelProto.
        smallest: size (bytes) from which a tensor's ``raw_data`` is left out.

    Returns:
        The serialised ModelProto, and for each initializer left empty (by its index in the file) its range in ``data``.

    Raises:
        ParseError: the bytes are not a protobuf message, or end too early; the message gives the offset.
    """
    view = data if isinstance(data, FileWindow) else memoryview(data)
    spans: dict[int, ByteRange] = {}
    out: list[bytes | memoryview] = []
    kept = 0
    initializers = 0
    for key, start, begin, end in fields(view, 0, len(view)):
        if key != MODEL_GRAPH << 3 | BYTES:
            continue
        graph: list[bytes | memoryview] = []
        graph_kept = begin
        for inner_key, inner_start, inner_begin, inner_end in fields(view, begin, end):
            if inner_key != GRAPH_INITIALIZER << 3 | BYTES:
                continue
            number, initializers = initializers, initializers + 1
            if inner_end - inner_begin < smallest:
                continue
            found = _without_raw_data(view, inner_begin, inner_end, smallest)
            if found is None:
                continue
            tensor, spans[number] = found
            graph += [view[graph_kept:inner_start], _varint(inner_key), _varint(len(tensor)), tensor]
            graph_kept = inner_end
        graph.append(view[graph_kept:end])
        out += [view[kept:start], _varint(key), _varint(sum(map(len, graph))), *graph]
        kept = end
    out.append(view[kept:])
    return b"".join(out), spans


def _without_raw_data(
    view: FileWindow | memoryview, begin: int, end: int, smallest: int
) -> tuple[bytes, ByteRange] | None:
    span = None
    pieces: list[bytes | memoryview] = []
    kept = begin
    for key, start, inner_begin, inner_end in fields(view, begin, end):
        if key != TENSOR_RAW_DATA << 3 | BYTES:
            continue
        if span is not None or inner_end - inner_begin < smallest:
            return None
        span = ByteRange(inner_begin, inner_end)
        pieces.append(view[kept:start])
        kept = inner_end
    if span is None:
        return None
    return b"".join([*pieces, view[kept:end]]), span


def fields(view: memoryview | FileWindow, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field of a message: its key, the start of the key, and the begin and end of the value."""
    near, low = (b"", 0) if isinstance(view, FileWindow) else (view, 0)
    position = begin
    while position < end:
        start = position
        if isinstance(view, FileWindow):
            near, low = view.near(start, 2 * VARINT_BYTES)
        key, position = _read_varint(near, position, end, low)
        kind = key & 7
        if kind == VARINT:
            value_begin = position
            _, position = _read_varint(near, position, end, low)
        elif kind == BYTES:
            length, value_begin = _read_varint(near, position, end, low)
            position = value_begin + length
        elif kind in (FIXED64, FIXED32):
            value_begin = position
            position += 8 if kind == FIXED64 else 4
        else:
            raise ParseError(f"not an ONNX model: byte {start} starts no protobuf field")
        if key >> 3 == 0:
            raise ParseError(f"not an ONNX model: byte {start} starts no protobuf field")
        if position > end:
            raise ParseError(
                f"not an ONNX model, or a truncated one: field {key >> 3} at"
                f" byte {start} ends at byte {position}, "
                f"what holds it at byte {end}"
            )
        yield key, start, value_begin, position


def _read_varint(near: bytes | memoryview, position: int, end: int, low: int) -> tuple[int, int]:
    """Return the number at byte ``position`` of a file, and the position after it; ``near`` are the file's bytes from
    ``low`` on."""
    value = shift = 0
    at = position
    while at < end and shift < 7 * VARINT_BYTES:
        byte = near[at - low]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ParseError(f"not an ONNX model, or a truncated one: no whole number at byte {position}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
