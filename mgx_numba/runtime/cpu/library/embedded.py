"""A library inside a model's file: the form that C++'s `migraphx::load` takes from a trusted ``.mxr`` file.

The library is a value tree: ``weights``, the content of their own file with its head; ``code``, the shared library; and
``checksum``, its CRC-32 as in gzip (RFC 1952), which detects damage before any code runs.
"""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path

from ....graph.wire import Blob


def library_tree(library: Path) -> dict[str, object]:
    """Return the value tree of a library that `writer.write_library` has linked; the library may be removed afterwards.

    Weights are mapped, not read. They come first, so that in the file they lie at a multiple of 64 bytes.
    """
    code = library.read_bytes()
    weights = library.with_name(library.stem.removeprefix("lib") + ".weights")
    tree: dict[str, object] = {}
    if weights.exists():
        with weights.open("rb") as file:
            tree["weights"] = Blob(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    return {**tree, "code": Blob(code), "checksum": zlib.crc32(code)}
