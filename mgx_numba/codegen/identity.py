"""What gives a kernel's text its meaning: the files that implement its language."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

__all__ = ["SHARED_MEANING", "files_digest"]

SHARED_MEANING = ("lang/*.py", "toolchain/*.py")
"""Files of code generation, relative to its folder, that the meaning of every back end's kernels depends on."""


@functools.lru_cache(maxsize=8)
def files_digest(patterns: tuple[str, ...]) -> str:
    """SHA-256 of the files that match, by patterns relative to the folder of code generation."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
