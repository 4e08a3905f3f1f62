"""A process that compiles kernels for another one: ``python -m mgx_numba.codegen.workers.worker``.

Both pipes carry messages of a 4-byte little-endian length and a msgpack value. The worker sends ``{"ready":
True}`` once Numba is imported; then answers each ``{"backend", "name", "text", "origin"}`` by ``{"object": bytes}`` or
``{"error": str}``, until its input ends.
"""

from __future__ import annotations

import gc
import os
import struct
from typing import IO, Any, NoReturn

import msgpack

from ...errors import CompileError
from ..backend import backend
from ..kernel import KernelSource

__all__ = ["main", "read_message", "write_message"]

_LENGTH = struct.Struct("<I")
_ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000
"""Python's is 700 to 2000: Numba makes so much that lives as long as its compilation that collecting finds little."""


def read_message(stream: IO[bytes]) -> Any:
    """The next message.

    Raises:
        EOFError: the other side has gone.
    """
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return msgpack.unpackb(body)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send one message at once."""
    body = msgpack.packb(message)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _answer(stream: IO[bytes], message: Any) -> None:
    """Send a message; if whoever asked is gone, so is this process, without a word."""
    try:
        write_message(stream, message)
    except OSError:
        os._exit(0)  # a normal exit would flush the stream and complain


def main() -> NoReturn:
    """Serve until the input ends, and with it the process.

    What is printed meanwhile goes to standard error, not into the protocol.
    """
    source_stream = os.fdopen(os.dup(0), "rb")
    answer_stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from ..toolchain import frontend  # noqa: F401  imports Numba before saying ready

    gc.freeze()  # nothing imported becomes garbage, and what a compilation leaves behind may wait
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    _answer(answer_stream, {"ready": True})
    while True:
        try:
            request = read_message(source_stream)
        except EOFError:
            os._exit(0)  # taking Numba's modules down would keep whoever waits for the end
        try:
            source = KernelSource(**request)
            answer: dict[str, Any] = {"object": backend(source.backend).compile(source)}
        except CompileError as error:
            answer = {"error": str(error)}
        _answer(answer_stream, answer)


if __name__ == "__main__":
    main()
