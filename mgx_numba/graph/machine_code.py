"""Where an ``.mxr`` file has machine code, found without decoding the program."""

from __future__ import annotations

from typing import Any

from .checksums import CHECKSUMS, check_sections
from .wire import Decoder

__all__ = ["LIBRARY", "OBJECTS", "load_objects"]

OBJECTS = "mgx_numba_objects"
"""Key of the machine code, in a msgpack file and in what is returned beside a program."""

LIBRARY = "mgx_numba_library"
"""Key of the shared library that runs the program, in a msgpack file; C++ reads it, Python passes it over."""


def load_objects(data: memoryview) -> Any:
    """The machine code of a msgpack file's content, None if it has none; the rest is passed over.

    Raises:
        FormatError: the content is malformed, or the machine code is damaged.
    """
    decoder = Decoder(data)
    positions: dict[str, int] = {}
    for key in decoder.entries("the file"):
        positions[key] = decoder.position
        decoder.skip()
    decoder.end_tree()
    if OBJECTS not in positions:
        return None
    if CHECKSUMS in positions:
        check_sections(data, decoder.at(positions[CHECKSUMS]).value(), only=OBJECTS)
    return decoder.at(positions[OBJECTS]).value()
