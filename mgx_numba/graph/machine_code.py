"""Location of the machine code in an ``.mxr`` file, found without decoding the program."""

from __future__ import annotations

from .checksums import CHECKSUMS, check_sections
from .wire import Decoder

OBJECTS = "mgx_numba_objects"
"""Key of the machine code, in a msgpack file and in the extra data that is returned with a program."""

LIBRARY = "mgx_numba_library"
"""Key, in a msgpack file, of the shared library that runs the program; C++ reads it, Python skips it."""


def load_objects(data: memoryview) -> object:
    """Return the machine code in a msgpack file's content, or None; all other entries are skipped.

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
