"""Kernels that ship with the package: a read-only layer below the object store.

There is one file for each platform, ``<backend>-<triple>.kernels``, with a section for each class of devices. A section
has one environment: the fields of a kernel's identity without its source and without the versions of Numba and LLVM. An
object runs whatever compiler is installed. ``python -m tools.prebuild --check`` proves that each object equals the
output of the release's compiler.

Layout of a file (little-endian):

- `MAGIC` and the length of the header (uint32);
- the header: a JSON array with an object for each section: ``environment``, ``toolchain``, ``machine`` (for readers)
and ``kernels``, their number;
- the entries of all sections, in each sorted by key: key, the start of the SHA-256 of the stored bytes, offset, length;
- the stored bytes: objects, compressed by zlib, in which the exported symbol is `NEUTRAL`. Equal objects, such as most
of AVX-512 classes, are stored once.

A file is mapped when the first kernel is missing from the object store.
"""

from __future__ import annotations

import bisect
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ..dataclass import dataclass
from ..errors import FormatError
from ..messages import warn
from .kernel import KernelSource

ENVIRONMENT = "MGX_SHIPPED_KERNELS"
FOLDER = Path(__file__).parent / "prebuilt"
"""The package's own folder. A source checkout has none."""
MAGIC = b"MGXKERN1"
NEUTRAL = "mgx_" + "0" * 24
"""The symbol that shipped objects export. `KernelSource.symbol`, of the same length, replaces it."""
_TOOLCHAIN = ("llvm", "llvmlite", "numba")
"""Fields of an identity in which a shipped object may differ."""
_START = struct.Struct("<8sI")
_ENTRY = struct.Struct("<16s16sII")
_HASH_BYTES = 16
"""Stored bytes of a SHA-256: of a kernel's text as its key, of stored bytes to detect damage."""

T = TypeVar("T")


@dataclass(frozen=True)
class ShippedSection:
    """The kernels of one class of devices.

    Attributes:
        identity: identity of its kernels, see `KernelSource.identity`, without the source.
        machine: a representative device of the class, for readers.
        objects: objects that export `NEUTRAL`, by `text_key` of the kernel's text.
    """

    identity: Mapping[str, str]
    machine: str
    objects: Mapping[str, bytes]


def text_key(text: str) -> str:
    """Return the key of a kernel's text: the start of its SHA-256, in hexadecimal digits."""
    return _hash(text.encode()).hex()


def file_name(identity: Mapping[str, str]) -> str:
    """Return the name of the file that may hold kernels of this identity."""
    return "-".join(filter(None, (identity["backend"], identity.get("triple")))) + ".kernels"


def pack(sections: Sequence[ShippedSection]) -> bytes:
    """Return the bytes of the file of a platform."""
    header = json.dumps(
        [
            {
                "environment": _environment(section.identity),
                "toolchain": {name: section.identity[name] for name in _TOOLCHAIN if name in section.identity},
                "machine": section.machine,
                "kernels": len(section.objects),
            }
            for section in sections
        ],
        sort_keys=True,
    ).encode()
    offset = _START.size + len(header) + _ENTRY.size * sum(len(section.objects) for section in sections)
    places: dict[bytes, bytes] = {}  # entry bytes after the key, by object
    entries, bodies = [], []
    for section in sections:
        for key, data in sorted(section.objects.items()):
            if data not in places:
                body = zlib.compress(data, 9)
                places[data] = _ENTRY.pack(b"", _hash(body), offset, len(body))[_HASH_BYTES:]
                bodies.append(body)
                offset += len(body)
            entries.append(bytes.fromhex(key) + places[data])
    return b"".join([_START.pack(MAGIC, len(header)), header, *entries, *bodies])


class ShippedKernels:
    """The files of a folder. A damaged file is ignored, with one warning."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._files: dict[str, _File | None] = {}

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object of a kernel, or None if it is absent or damaged."""
        identity = source.identity()
        data = self._asked(identity, lambda file: file.get(identity))
        return None if data is None else data.replace(NEUTRAL.encode(), source.symbol.encode())

    def count(self, identity: Mapping[str, str]) -> int | None:
        """Return the number of kernels of an identity's environment; None if there is no intact file."""
        return self._asked(identity, lambda file: len(file.entries(identity)))

    def objects(self, identity: Mapping[str, str]) -> dict[str, bytes]:
        """Return the objects, which export `NEUTRAL`, of an identity's environment, by keys that `pack` takes."""
        return self._asked(identity, lambda file: file.objects(identity)) or {}

    def _asked(self, identity: Mapping[str, str], ask: Callable[[_File], T]) -> T | None:
        name = file_name(identity)
        path = self.folder / name
        try:
            if name not in self._files:
                self._files[name] = self._open(path)
            file = self._files[name]
            return None if file is None else ask(file)
        except (OSError, FormatError) as error:
            self._files[name] = None
            warn(f"{path} is not used, so its kernels are compiled: {error}", RuntimeWarning)
            return None

    def _open(self, path: Path) -> _File | None:
        if path.exists():
            return _File(path)
        if self.folder != FOLDER and not self.folder.is_dir():
            raise FormatError(f"{ENVIRONMENT} names a folder that does not exist")
        return None


class _File:
    """One mapped file."""

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            OSError: the file cannot be read.
            FormatError: the file is damaged.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _START.size:
                raise FormatError("it is too short")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, length = _START.unpack_from(self._data)
        if magic != MAGIC:
            raise FormatError("it is no file of kernels of this version")
        place = _START.size + length
        self._sections: list[tuple[dict[str, str], range]] = []
        """The environment of each section, and where its entries lie."""
        try:
            for section in json.loads(self._data[_START.size : place]):
                entries = range(place, place + _ENTRY.size * section["kernels"], _ENTRY.size)
                self._sections.append((section["environment"], entries))
                place = entries.stop
        except (ValueError, KeyError, TypeError):
            raise FormatError("its header is damaged") from None
        if place > len(self._data):
            raise FormatError("its index is damaged")

    def get(self, identity: Mapping[str, str]) -> bytes | None:
        """Return the object of the kernel with this identity, or None.

        Raises:
            FormatError: the object is damaged.
        """
        key, entries = bytes.fromhex(identity["source"])[:_HASH_BYTES], self.entries(identity)
        found = bisect.bisect_left(entries, key, key=self._key_at)
        if found < len(entries) and self._key_at(entries[found]) == key:
            return self._object(*_ENTRY.unpack_from(self._data, entries[found]))
        return None

    def objects(self, identity: Mapping[str, str]) -> dict[str, bytes]:
        """Return all objects of an identity's environment, by key in hexadecimal digits.

        Raises:
            FormatError: an object is damaged.
        """
        found = (_ENTRY.unpack_from(self._data, place) for place in self.entries(identity))
        return {entry[0].hex(): self._object(*entry) for entry in found}

    def entries(self, identity: Mapping[str, str]) -> range:
        """Return where the entries of an identity's environment lie; an empty range if no section has it."""
        wanted = _environment(identity)
        return next((entries for environment, entries in self._sections if environment == wanted), range(0))

    def _key_at(self, place: int) -> bytes:
        return self._data[place : place + _HASH_BYTES]

    def _object(self, key: bytes, check: bytes, offset: int, length: int) -> bytes:
        body = self._data[offset : offset + length]
        if _hash(body) != check:
            raise FormatError(f"the object of kernel {key.hex()[:12]} is damaged")
        return zlib.decompress(body)


def _environment(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the identity fields that name a section: without the source and the compiler's versions."""
    return {name: value for name, value in identity.items() if name != "source" and name not in _TOOLCHAIN}


def _hash(body: bytes) -> bytes:
    import hashlib  # late: it loads OpenSSL

    return hashlib.sha256(body).digest()[:_HASH_BYTES]
