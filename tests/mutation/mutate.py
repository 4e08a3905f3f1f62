"""Mutations of a saved program: of its bytes, of lengths and types in them, and of the decoded values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import msgpack

__all__ = ["mutate"]

_EXTREMES: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 63, 64, 65, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 61, (1 << 63) - 1, (1 << 64) - 1,
    -(1 << 31), -(1 << 63), 0.5, -0.0, float("inf"), float("nan"), True, False, None, "", "main", "x", "@literal",
    "@param", "add", "convolution", "if", "float_type", "tuple_type", "\0", "é" * 9, [], {}, [[]], [0], [1] * 70,
    {"": 0}, {"lens": [1]}, {"min": 0, "max": 1}, {"name": "relu", "operator": {}},
)  # fmt: skip
_CODES = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0x100))


def mutate(data: bytes, json_form: bool, rng: random.Random) -> bytes:
    """Insert one to three faults into the bytes of a file, or into its values."""
    if rng.random() < 0.4:
        return _mutate_values(data, json_form, rng)
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        rng.choice(_BYTE_MUTATIONS)(result, rng)
        if not result:
            return b"\xc0"
    return bytes(result)


def _flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _change_type(data: bytearray, rng: random.Random) -> None:
    data[_place(data, rng)] = rng.choice(_CODES)


def _change_length(data: bytearray, rng: random.Random) -> None:
    """The bytes after a type code with a length become another one: extreme, or off by a little."""
    place = _place(data, rng)
    width = {0xC4: 1, 0xD9: 1, 0xC5: 2, 0xDA: 2, 0xDC: 2, 0xDE: 2}.get(data[place], 4)
    if data[place] < 0xC0:
        data[place] = max(0x80, min(0xBF, data[place] + rng.choice((-1, 1))))
        return
    old = int.from_bytes(data[place + 1 : place + 1 + width], "big")
    last = (1 << 8 * width) - 1
    new = rng.choice((0, 1, last, last >> 1, old + 1, old - 1, old * 2, len(data), rng.getrandbits(8 * width)))
    data[place + 1 : place + 1 + width] = (new & last).to_bytes(width, "big")


def _shift(data: bytearray, rng: random.Random) -> None:
    """Take bytes out or put some in, so that all later offsets are wrong."""
    place = rng.randrange(len(data))
    if rng.random() < 0.5:
        del data[place : place + rng.randint(1, 40)]
    else:
        other = rng.randrange(len(data))
        data[place:place] = data[other : other + rng.randint(1, 60)]


def _overwrite(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    data[place : place + 8] = rng.randbytes(8)


def _place(data: bytearray, rng: random.Random) -> int:
    """Return an offset that probably starts a string, array or map, judged by its byte."""
    for _ in range(50):
        place = rng.randrange(len(data))
        if 0x80 <= data[place] < 0xC0 or 0xC4 <= data[place] <= 0xC6 or 0xD9 <= data[place] <= 0xDF:
            return place
    return rng.randrange(len(data))


_BYTE_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip_bits, _truncate, _change_type, _change_type, _change_length, _change_length, _shift, _overwrite,
)  # fmt: skip


def _mutate_values(data: bytes, json_form: bool, rng: random.Random) -> bytes:
    """Return a well-formed file with values changed, removed, duplicated or exchanged."""
    root, tail = (json.loads(data), b"") if json_form else _unpack(data)
    for _ in range(rng.randint(1, 3)):
        holder, key = _slot(root, rng)
        if holder is None:
            continue
        kind = rng.randrange(6)
        if kind < 3:
            holder[key] = _other(holder[key], rng)
        elif kind == 3:
            del holder[key]
        else:
            other, place = _slot(root, rng)
            if other is not None:
                copied = msgpack.unpackb(msgpack.packb(other[place]))
                if kind == 4 and isinstance(holder, list):
                    holder.insert(key, copied)
                else:
                    holder[key] = copied
    if json_form:
        return json.dumps(root).encode()
    return _aligned(msgpack.packb(root)) + tail if tail else msgpack.packb(root)


def _unpack(data: bytes) -> tuple[Any, bytes]:
    """The tree of a file, and what follows it at the next multiple of 64."""
    reader = msgpack.Unpacker()
    reader.feed(data)
    root = reader.unpack()
    return root, data[reader.tell() + -reader.tell() % 64 :]


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def _slot(root: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random place in a tree: the list or map that holds it, and its index or key."""
    holder, key, value = None, None, root
    while isinstance(value, (list, dict)) and value:
        holder = value
        key = rng.randrange(len(value)) if isinstance(value, list) else rng.choice(list(value))
        value = value[key]
        if rng.random() < 0.1:
            break
    return holder, key


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return max(-(1 << 63), min((1 << 64) - 1, value + rng.choice((-1, 1, 2, 64, -64))))
    if isinstance(value, bytes) and rng.random() < 0.5:
        return rng.choice((value[:-1], value + b"\0", value * 2, b"", bytes(len(value))))
    return copy.deepcopy(rng.choice(_EXTREMES))
