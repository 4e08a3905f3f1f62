"""Files that implement the kernel language and thus define the meaning of kernel text.

Their digest is cached in the cache folder by package state, because reading them takes milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path

from ..digest import text_digest
from .files import NOT_OF_CPU, default_folder, make_folder, package_state, read_trusted, replace_file

SHARED_MEANING = ("lang/*.py", "toolchain/*.py")
"""Files, relative to the code generation folder, that every back end's kernels depend on."""


@functools.lru_cache(maxsize=8)
def files_digest(patterns: tuple[str, ...]) -> str:
    """Return the SHA-256 of files that match patterns relative to the code generation folder."""
    all_of_cpu = not any(pattern.startswith("gpu/") for pattern in patterns)
    state = package_state(NOT_OF_CPU) if all_of_cpu else package_state()
    key = text_digest("\n".join((state, *patterns)))
    path = default_folder() / f"meaning-{key[:24]}.txt"
    with contextlib.suppress(OSError):
        known = read_trusted(path).decode("ascii", "replace")
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    found = _digest(patterns)
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        replace_file(path, found.encode())
    return found


def _digest(patterns: tuple[str, ...]) -> str:
    import hashlib  # late: it loads OpenSSL

    package = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in package.glob(pattern)):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
