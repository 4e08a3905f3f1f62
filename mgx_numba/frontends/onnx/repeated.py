"""Reader of repeated numbers of protobuf messages as arrays, without a Python object for each number.

Protobuf's Python containers make an object for each element, 50 to 100 ns each. Serialising the message again takes 1
ns per byte, and NumPy reads the wire format: a key and a value for each element, or one key for packed elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .wire import fields

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

FEW = 256
"""Number of elements below which a loop over Python objects is faster: it takes 20 microseconds."""
_BYTES = 2  # wire type of packed elements and of strings
_MOST_BYTES = 10  # largest size of a varint


def repeated_numbers(message: object, name: str, dtype: DTypeLike) -> np.ndarray:
    """Return the elements of a repeated field of numbers.

    Args:
        message: a protobuf message.
        name: a repeated field of floats, doubles, or integers without zigzag.
        dtype: element type of the result.
    """
    container = getattr(message, name)
    count = len(container)
    if count >= FEW:
        found = _from_wire(message, name, count)
        if found is not None:
            return found.astype(dtype, copy=False)
    return np.fromiter(container, dtype, count)


def repeated_codes(message: Any, name: str, words: Sequence[str]) -> np.ndarray | None:
    """Return the index in ``words`` of each element of a repeated field of strings; None if a string is unknown.

    Args:
        message: a protobuf message.
        name: a repeated field of strings or bytes.
        words: up to 32 different words of at most 127 letters from A to Z and underscores, without the letter "J",
            whose byte is the key of `AttributeProto.strings`.
    """
    container = getattr(message, name)
    count = len(container)
    if count < FEW:
        codes = {word.encode(): code for code, word in enumerate(words)}
        known = [codes.get(text, -1) for text in container]
        return None if -1 in known else np.array(known, np.int8)
    number = message.DESCRIPTOR.fields_by_name[name].number
    data, key = message.SerializeToString(), number << 3 | _BYTES
    begin = next(start for found_key, start, _, _ in fields(data, 0, len(data)) if found_key == key)
    data = data[begin:]
    # No word contains the key's byte, so a match starts where a field starts: each field becomes one byte.
    for code, word in enumerate(words):
        data = data.replace(bytes((key, len(word))) + word.encode(), bytes((code,)))
    found = np.frombuffer(data, np.int8)[:count]
    return found if found.size == count and (found.view(np.uint8) < len(words)).all() else None


def _from_wire(message: Any, name: str, count: int) -> np.ndarray | None:
    """Return the elements of a field; None unless they are one run in the serialised message."""
    field = message.DESCRIPTOR.fields_by_name[name]
    fixed: Any = {field.TYPE_FLOAT: np.dtype("<f4"), field.TYPE_DOUBLE: np.dtype("<f8")}.get(field.type)
    data = message.SerializeToString()
    for key, start, begin, end in fields(data, 0, len(data)):
        if key >> 3 != field.number:
            continue
        if key & 7 == _BYTES:
            run, own = np.frombuffer(data, np.uint8)[begin:end], 0
        else:
            run, own = np.frombuffer(data, np.uint8)[start:], key
        if own > 0x7F:
            return None  # a key of two bytes: no unpacked field of ONNX has such a key
        return _fixed_run(run, own, count, fixed) if fixed is not None else _varint_run(run, own, count)
    return None


def _fixed_run(run: np.ndarray, key: int, count: int, dtype: np.dtype) -> np.ndarray | None:
    """Return ``count`` values of ``dtype``, each preceded by the byte ``key`` unless it is 0; None if a key differs."""
    if not key:
        return run.view(dtype) if run.size == count * dtype.itemsize else None
    record = np.dtype([("key", np.uint8), ("value", dtype)])
    if run.size < count * record.itemsize:
        return None
    records = run[: count * record.itemsize].view(record)
    return records["value"].copy() if (records["key"] == key).all() else None


def _varint_run(run: np.ndarray, key: int, count: int) -> np.ndarray | None:
    """Return ``count`` varints as int64, each preceded by the byte ``key`` unless it is 0; None if a key differs."""
    ends = np.flatnonzero(run < 0x80)
    if key:
        before, ends = ends[0 : 2 * count : 2], ends[1 : 2 * count : 2]
    else:
        before = np.concatenate([[-1], ends[:-1]])
    if not before.size == ends.size == count:
        return None
    if key and ((run[before] != key).any() or before[0] != 0 or (before[1:] != ends[:-1] + 1).any()):
        return None
    lengths = ends - before
    longest = int(lengths.max())
    if longest > _MOST_BYTES:
        return None
    values = (run[before + 1] & 0x7F).astype(np.uint64)
    for k in range(1, longest):
        more = np.flatnonzero(lengths > k)
        values[more] |= (run[before[more] + 1 + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64)
