"""The value tree of an ``.mxr`` file, for tests that write it back with changes."""

from __future__ import annotations

from typing import Any

import msgpack

from mgx_numba.graph.checksums import CHECKSUMS

__all__ = ["file_tree"]


def file_tree(data: bytes) -> dict[str, Any]:
    """Return the map of a msgpack file without its checksums, which would tell of the changes."""
    root: dict[str, Any] = msgpack.unpackb(data)
    root.pop(CHECKSUMS, None)
    return root
