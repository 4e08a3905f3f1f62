"""Files that implement the kernel language and thus define the meaning of kernel text."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

__all__ = ["SHARED_MEANING", "files_digest"]

SHARED_MEANING = ("lang/*.py", "toolchain/*.py")
"""Files, relative to the code generation folder, that every back end's kernels depend on."""


@functools.lru_cache(maxsize=8)
def files_digest(patterns: tuple[str, ...]) -> str:
    """Return the SHA-256 of files that match patterns relative to the code generation folder."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
