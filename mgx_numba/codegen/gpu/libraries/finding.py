"""Where NVIDIA's libraries are: in the folders of their wheels, in the package ``nvidia``, or on the loader's path."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....errors import DeviceError

__all__ = ["loaded_library"]


def loaded_library(names: Sequence[str], needs: Sequence[str] = ()) -> Any:
    """The first library that there is of some file names.

    ``needs`` are names of others, which it looks for when it needs them; they are loaded before it where there are any.

    Raises:
        DeviceError: none of the names can be loaded.
    """
    for name in needs:
        _opened(name, ctypes.RTLD_GLOBAL)
    for name in names:
        found = _opened(name, ctypes.RTLD_LOCAL)
        if found is not None:
            return found
    raise DeviceError(f"{names[0]} is not installed; the extra cuda brings it")


@functools.lru_cache(maxsize=16)
def _opened(name: str, mode: int) -> Any:
    """A library, None if it cannot be loaded; it is looked for once."""
    for path in (*_in_wheels(name), name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path, mode=mode)
    return None


def _in_wheels(name: str) -> Iterator[str]:
    """Where wheels have a file of this name: ``nvidia/cu13/lib`` and the like."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia")
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from map(str, sorted(Path(root).glob(f"*/lib/{name}")))
