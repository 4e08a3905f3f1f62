"""The object store: compiled kernels kept between processes, as one ELF file and one JSON record each.

``<folder>/objects/<symbol>.o`` is the object, ``<symbol>.json`` its readable name, length, SHA-256 and identity. Files
are replaced atomically, so any number of processes may share a folder. An object counts as absent in these cases:

- it does not match its record;
- the record's identity differs from the kernel's;
- another user than this user and root owns either file.

The folder is ``MGX_CACHE_DIR``, or the platform's cache folder. Kernels that the folder lacks are looked up among the
`shipped` kernels, which are not copied into the folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ..environment import environment_flag
from ..messages import warn
from .files import ENVIRONMENT, default_folder, make_folder, mark_used, read_trusted, replace_file
from .kernel import KernelSource
from .shipped import ENVIRONMENT as SHIPPED_ENVIRONMENT
from .shipped import FOLDER, ShippedKernels

DEFAULT_LIMIT = 1 << 30
"""Total bytes of all objects: some hundred thousand kernels of about 10 KB."""
_PRUNE_EVERY = 256  # stored objects between checks of the folder's size, which scan all its files
_PRUNE_TO = 0.75  # remaining fraction of the limit, so that the next check need not prune


def default_store() -> ObjectStore:
    """Return the store of `default_folder()`, over the shipped kernels; the same object for the same folders."""
    return _store(default_folder(), shipped_folder())


def shipped_folder() -> Path | None:
    """Return the folder of shipped kernels: ``MGX_SHIPPED_KERNELS`` if set, else the package's; None for none."""
    chosen = os.environ.get(SHIPPED_ENVIRONMENT)
    if chosen is None:
        return FOLDER
    return Path(chosen).expanduser() if environment_flag(SHIPPED_ENVIRONMENT) else None


@functools.cache
def _store(folder: Path, shipped: Path | None) -> ObjectStore:
    return ObjectStore(folder, shipped=None if shipped is None else ShippedKernels(shipped))


class Store(Protocol):
    """A store of objects: it is searched before a kernel is compiled, and receives compiled objects."""

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object of a kernel, or None."""

    def put(self, source: KernelSource, data: bytes) -> None:
        """Store an object."""


class ObjectStore:
    """Objects under ``folder``, at most about ``limit`` bytes; the least recently used are deleted first.

    Absent kernels are looked up in ``shipped``. A folder that cannot be written is reported by one warning, and nothing
    is stored from then on.
    """

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT, shipped: ShippedKernels | None = None) -> None:
        self.folder = folder / "objects"
        self.limit = limit
        self._shipped = shipped
        self._offered: dict[object, Mapping[str, np.ndarray]] = {}  # by context
        self._puts = 0
        self._writable = True

    def get(self, source: KernelSource) -> bytes | None:
        """Return the object of a kernel, or None if neither the folder nor the shipped kernels have an intact one."""
        offered = next((own[source.symbol] for own in [*self._offered.values()] if source.symbol in own), None)
        data = self._kept(source) if offered is None else offered.tobytes()
        return self._shipped.get(source) if data is None and self._shipped is not None else data

    @contextlib.contextmanager
    def offering(self, objects: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Let `get` return these intact objects (bytes, by symbol) within the context, without reading a file.

        Contexts of several threads may overlap in any order.
        """
        context = object()
        self._offered[context] = objects
        try:
            yield
        finally:
            del self._offered[context]

    def _kept(self, source: KernelSource) -> bytes | None:
        """Return the object in the folder."""
        object_path, record_path = self._paths(source.symbol)
        try:
            record = json.loads(read_trusted(record_path))
            data = read_trusted(object_path)
            intact = len(data) == record["size"] and _sha256(data) == record["sha256"]
            if not intact or record["identity"] != source.identity():
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        mark_used(object_path)
        return data

    def put(self, source: KernelSource, data: bytes) -> None:
        """Store an object; a failure to write is not an error."""
        if not self._writable:
            return
        object_path, record_path = self._paths(source.symbol)
        record = {
            "name": source.name,
            "size": len(data),
            "sha256": _sha256(data),
            "identity": source.identity(),
        }
        try:
            make_folder(self.folder)
            replace_file(object_path, data)
            replace_file(record_path, json.dumps(record, indent=1).encode())
        except OSError as error:
            # Windows refuses to replace a file that another process reads: that process has the same object
            if sys.platform == "win32" and isinstance(error, PermissionError) and object_path.exists():
                return
            self._writable = False
            warn(
                f"compiled kernels are not kept: cannot write to {self.folder} ({error.strerror or error}); "
                f"set {ENVIRONMENT} to a writable folder",
                RuntimeWarning,
            )
            return
        if self._puts % _PRUNE_EVERY == 0:
            self.prune()
        self._puts += 1

    def prune(self) -> int:
        """Delete the least recently used objects if the store exceeds its limit; return the bytes freed."""
        entries = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as files:
            for entry in files:
                if entry.name.endswith(".o"):
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        entries.append((status.st_atime, status.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        freed = 0
        if total > self.limit:
            for _, size, path in sorted(entries):
                if total - freed <= self.limit * _PRUNE_TO:
                    break
                for victim in (f"{path.removesuffix('.o')}.json", path):
                    with contextlib.suppress(OSError):
                        os.unlink(victim)
                freed += size
        return freed

    def _paths(self, symbol: str) -> tuple[Path, Path]:
        return self.folder / f"{symbol}.o", self.folder / f"{symbol}.json"


def look_up(
    store: Store, sources: Sequence[KernelSource], loadable: Callable[[KernelSource, bytes], bool]
) -> tuple[dict[str, bytes], list[KernelSource]]:
    """Return the stored and ``loadable`` objects by symbol, and the kernels without one."""
    found: dict[str, bytes] = {}
    missing = []
    for source in sources:
        data = store.get(source)
        if data is None or not loadable(source, data):
            missing.append(source)
        else:
            found[source.symbol] = data
    return found, missing


def _sha256(data: bytes) -> str:
    import hashlib  # late: it loads OpenSSL

    return hashlib.sha256(data).hexdigest()
