"""A library inside of a model's file: what `migraphx::load` of C++ takes from an ``.mxr`` file that it may trust.

It is a value tree: ``weights``, as they are in their own file, head and all; ``code``, the shared library; and its
``checksum``, CRC-32 as gzip has it (RFC 1952), by which damage is told before anything of it runs.
"""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path
from typing import Any

from ....graph.wire import Blob

__all__ = ["library_tree"]


def library_tree(library: Path) -> dict[str, Any]:
    """The value tree of a library that `writer.write_library` has linked, which may be removed afterwards.

    Weights are mapped, not read: they come first, so that the file has them at a multiple of 64 bytes.
    """
    code = library.read_bytes()
    weights = library.with_name(library.stem.removeprefix("lib") + ".weights")
    tree: dict[str, Any] = {}
    if weights.exists():
        with weights.open("rb") as file:
            tree["weights"] = Blob(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    return {**tree, "code": Blob(code), "checksum": zlib.crc32(code)}
