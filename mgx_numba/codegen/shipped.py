"""Kernels that ship with the package: a read-only layer below the object store.

There is one file for each environment, ``<backend>-<16 hexadecimal digits>.kernels``: the digits are a hash of a kernel
identity without its source and without the versions of Numba and LLVM. An object runs whatever compiler is installed;
``python -m tools.prebuild --check`` proves that each object is what compiling gives with the compiler of the release.

Layout of a file (little-endian):

- `MAGIC`, the length of the header (uint32), the number of kernels (uint32);
- the header: a JSON object with ``identity``, ``toolchain`` and ``cpu``;
- one `_ENTRY` for each kernel, sorted by key: key, SHA-256 of the stored bytes, their offset and length;
- the stored bytes: objects, compressed by zlib, in which the exported symbol is `NEUTRAL`.

A file is mapped when the first kernel is missing from the object store.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..messages import warn
from .kernel import KernelSource

__all__ = ["ENVIRONMENT", "FOLDER", "NEUTRAL", "ShippedKernels", "environment_of", "file_name", "pack_kernels"]

ENVIRONMENT = "MGX_SHIPPED_KERNELS"
FOLDER = Path(__file__).parent / "prebuilt"
"""The package's own folder. A source checkout has none."""
MAGIC = b"MGXKERN1"
NEUTRAL = "mgx_" + "0" * 24
"""The symbol that shipped objects export. It has the length of `KernelSource.symbol`, which replaces it."""
TOOLCHAIN = ("llvm", "llvmlite", "numba")
"""Fields of an identity that a shipped object may differ in."""
_START = struct.Struct("<8sII")
_ENTRY = struct.Struct("<16s32sII")
_KEY_BYTES = 16  # of the SHA-256 of a kernel's text


def environment_of(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a kernel's identity that a file of shipped kernels is for."""
    return {name: value for name, value in identity.items() if name != "source" and name not in TOOLCHAIN}


def file_name(environment: Mapping[str, str]) -> str:
    """Return the name of the file for an environment, see `environment_of`."""
    lines = "".join(f"{name}={value}\n" for name, value in sorted(environment.items()))
    return f"{environment['backend']}-{hashlib.sha256(lines.encode()).hexdigest()[:16]}.kernels"


def pack_kernels(header: Mapping[str, Any], objects: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a file.

    Args:
        header: a JSON object with at least ``identity``, see `environment_of`.
        objects: objects that export `NEUTRAL`, by the SHA-256 of the kernel's text in hexadecimal digits.
    """
    text = json.dumps(header, sort_keys=True).encode()
    offset = _START.size + len(text) + _ENTRY.size * len(objects)
    entries, bodies = [], []
    for digest in sorted(objects):
        body = zlib.compress(objects[digest], 9)
        entries.append(_ENTRY.pack(_key(digest), hashlib.sha256(body).digest(), offset, len(body)))
        bodies.append(body)
        offset += len(body)
    return b"".join([_START.pack(MAGIC, len(text), len(objects)), text, *entries, *bodies])


class ShippedKernels:
    """The files of a folder. A damaged file or object is not used, and one warning says so."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._files: dict[str, _File | None] = {}

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object of a kernel, or None if it is absent or damaged."""
        identity = source.identity()
        environment = environment_of(identity)
        name = file_name(environment)
        try:
            if name not in self._files:
                self._files[name] = None  # a damaged file is told once
                path = self.folder / name
                self._files[name] = _File(path, environment) if path.exists() else None
            file = self._files[name]
            data = None if file is None else file.get(identity["source"])
        except (OSError, FormatError) as error:
            self._files[name] = None
            warn(f"shipped kernels in {self.folder / name} are not used: {error}", RuntimeWarning)
            return None
        return None if data is None else data.replace(NEUTRAL.encode(), source.symbol.encode())


class _File:
    """One mapped file."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Map the file.

        Raises:
            OSError: it cannot be read.
            FormatError: it is damaged, or of another environment.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _START.size:
                raise FormatError("it is too short")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, length, self._count = _START.unpack_from(self._data)
        self._entries = _START.size + length
        if magic != MAGIC or self._entries + _ENTRY.size * self._count > len(self._data):
            raise FormatError("it is damaged")
        try:
            header = json.loads(self._data[_START.size : self._entries])
            identity = header["identity"]
        except (ValueError, KeyError, TypeError):
            raise FormatError("its header is damaged") from None
        if identity != environment:
            raise FormatError("it is of another environment")

    def get(self, digest: str) -> bytes | None:
        """Return the object of the kernel whose text has a digest, or None.

        Raises:
            FormatError: the object is damaged.
        """
        key = _key(digest)
        place = bisect.bisect_left(range(self._count), key, key=self._key_at)
        if place == self._count or self._key_at(place) != key:
            return None
        _, check, offset, length = _ENTRY.unpack_from(self._data, self._entries + _ENTRY.size * place)
        body = self._data[offset : offset + length]
        if hashlib.sha256(body).digest() != check:
            raise FormatError(f"the object of kernel {digest[:12]} is damaged")
        return zlib.decompress(body)

    def _key_at(self, place: int) -> bytes:
        begin = self._entries + _ENTRY.size * place
        return self._data[begin : begin + _KEY_BYTES]


def _key(digest: str) -> bytes:
    return bytes.fromhex(digest)[:_KEY_BYTES]
