"""Where an ``.mxr`` file has machine code, found without decoding the program."""

from __future__ import annotations

from typing import Any

from .wire import Decoder

__all__ = ["LIBRARY", "OBJECTS", "load_objects"]

OBJECTS = "mgx_numba_objects"
"""Key of the machine code, in a msgpack file and in what is returned beside a program."""

LIBRARY = "mgx_numba_library"
"""Key of the shared library that runs the program, in a msgpack file; C++ reads it, Python passes it over."""


def load_objects(data: memoryview) -> Any:
    """The machine code of a msgpack file's content, None if it has none; the rest is passed over.

    Raises:
        FormatError: the content is malformed.
    """
    decoder = Decoder(data)
    objects: int | None = None
    for key in decoder.entries("the file"):
        objects = decoder.position if key == OBJECTS else objects
        decoder.skip()
    decoder.end_tree()
    return None if objects is None else decoder.at(objects).value()
