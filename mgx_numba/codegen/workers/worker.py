"""A worker process that compiles kernels: ``python -m mgx_numba.codegen.workers.worker [FD FD]...``.

Both pipes carry messages: a 4-byte little-endian length and a msgpack value. The worker sends ``{"ready": True}`` once
Numba is imported. It then answers each ``{"symbol", "backend", "name", "text", "origin"}`` by ``{"object": bytes}`` or
``{"error": str}``, until its input ends. The worker does not answer ``{"fork": True}``: its fork serves the next two
descriptors of its arguments, requests and answers, and sends the ready message there.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any, NoReturn

import msgpack

from ...errors import CompileError
from ..backend import backend
from ..kernel import KernelSource

_LENGTH = struct.Struct("<I")
_ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000
"""Threshold of the garbage collector, Python's is 700 to 2000: reference counts free the objects of a compilation."""


def read_message(stream: IO[bytes]) -> Any:
    """Read the next message.

    Raises:
        EOFError: the process at the stream's far end has ended.
    """
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return msgpack.unpackb(body)


def write_message(stream: IO[bytes], message: object) -> None:
    """Send one message and flush."""
    body = msgpack.packb(message)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _answer(stream: IO[bytes], message: object) -> None:
    """Send a message; exit silently if the reader has gone."""
    try:
        write_message(stream, message)
    except OSError:
        os._exit(0)  # a normal exit would flush the stream and complain


def main() -> NoReturn:
    """Serve requests until the input ends, then exit.

    Printed output goes to standard error, not into the protocol.
    """
    gc.disable()  # until all modules are imported
    source_stream = os.fdopen(os.dup(0), "rb")
    answer_stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from ..toolchain import frontend  # noqa: F401  imports Numba before saying ready

    gc.freeze()  # imported objects never become garbage; garbage of compilations may wait
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    gc.enable()
    ends = list(map(int, sys.argv[1:]))
    forks: list[int] = []
    _answer(answer_stream, {"ready": True})
    while True:
        try:
            request = read_message(source_stream)
        except EOFError:
            _end(ends, forks)
        if "fork" in request:
            pair = ends[:2]
            del ends[:2]
            child = os.fork()
            if child:
                forks.append(child)
                _close(pair)
                continue
            _close(ends)
            source_stream.close()
            answer_stream.close()
            ends, forks = [], []
            source_stream, answer_stream = os.fdopen(pair[0], "rb"), os.fdopen(pair[1], "wb")
            _answer(answer_stream, {"ready": True})
            continue
        try:
            symbol = request.pop("symbol")
            source = KernelSource(**request)
            source.restore_symbol(symbol)  # this process need not compute it
            answer: dict[str, object] = {"object": backend(source.backend).compile(source)}
        except CompileError as error:
            answer = {"error": str(error)}
        _answer(answer_stream, answer)


def _end(ends: Sequence[int], forks: Sequence[int]) -> NoReturn:
    """Exit after this process's forks have ended; skip Python's shutdown, since unloading Numba's modules takes
    longer."""
    _close(ends)
    for child in forks:
        os.waitpid(child, 0)
    os._exit(0)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    main()
