"""Locate NVIDIA's libraries in wheels (package ``nvidia``) or on the loader's path."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from ....errors import DeviceError
from ..driver.library import Library


class ContractionLibrary(Library):
    """A library's functions, and one handle per device.

    Attributes:
        get_version, get_name, create: names of its functions that return the version, a status name, and a new handle.
        least: oldest supported version.
        version: version.
        lock: protects handles that are not thread-safe.
    """

    get_version: ClassVar[str]
    get_name: ClassVar[str]
    create: ClassVar[str]
    least: ClassVar[int]

    def __init__(self, library: object) -> None:
        """Check the version.

        Raises:
            DeviceError: it is too old.
        """
        super().__init__(library)
        tell = getattr(library, self.get_version)
        tell.restype = ctypes.c_size_t
        self.version = int(tell())
        if self.version < self.least:
            raise DeviceError(f"{self.vendor} is version {self.version}; {self.least} is needed")
        self.lock = threading.RLock()
        self._handles: dict[int, ctypes.c_void_p] = {}

    def name_of(self, status: int) -> str:
        function = getattr(self.library, self.get_name)
        function.restype = ctypes.c_char_p
        told = function(status)
        return told.decode() if isinstance(told, bytes) else ""

    def handle(self, number: int) -> ctypes.c_void_p:
        """Return the handle of a device, which is the current device."""
        with self.lock:
            if number not in self._handles:
                made = ctypes.c_void_p()
                self.call(self.create, ctypes.byref(made))
                self._handles[number] = made
            return self._handles[number]

    def check_version(self, wanted: int) -> None:
        """Require version ``wanted``.

        Raises:
            DeviceError: the library has another version.
        """
        if self.version != wanted:
            raise DeviceError(f"{self.vendor} is version {self.version}, what is to be called is of {wanted}")


def loaded_library(names: Sequence[str], needs: Sequence[str] = ()) -> object:
    """Load the first available library of ``names``; ``needs`` are optional dependencies that are loaded before.

    Raises:
        DeviceError: none can be loaded.
    """
    for name in needs:
        _opened(name, ctypes.RTLD_GLOBAL)
    for name in names:
        found = _opened(name, ctypes.RTLD_LOCAL)
        if found is not None:
            return found
    raise DeviceError(f"{names[0]} is not installed; the extra cuda brings it")


@functools.lru_cache(maxsize=16)
def _opened(name: str, mode: int) -> object:
    """Load a library, None if that fails; cached."""
    for path in (*in_wheels(name), name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path, mode=mode)
    return None


def in_wheels(name: str) -> Iterator[str]:
    """Yield the paths of a file in wheels: ``nvidia/cu13/lib`` and the like."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia")
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from map(str, sorted(Path(root).glob(f"*/lib/{name}")))
