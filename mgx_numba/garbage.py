"""Suspension of cyclic garbage collection while very many short-lived objects are made, and at the process's end."""

from __future__ import annotations

import atexit
import gc
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from itertools import compress
from types import AsyncGeneratorType, CoroutineType, GeneratorType

_lock = threading.Lock()
_inside = 0
_enabled = False
_frozen = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend cyclic garbage collection in all threads within the context; young objects become old at its end.

    A collection starts after a fixed number of new objects and visits all young objects. Whenever these reach a quarter
    of the old objects, it visits the whole process: a third of a second for half a million objects. For some ten
    thousand objects that live for milliseconds, collection would cost more than their work. The context may be nested,
    and used by several threads at once.
    """
    global _inside, _enabled
    with _lock:
        if _inside == 0:
            _enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _enabled:
                _look_later()
                gc.enable()


def _look_later() -> None:
    """Move young objects to the old generation, so that no collection starts at once for the many new objects.

    ``freeze`` and ``unfreeze`` move whole lists of objects without visiting them. A process that has frozen objects
    itself is left alone. Counting frozen objects visits them all, so the count is taken only until objects are found.
    """
    global _frozen
    if sys.implementation.name != "cpython" or _frozen:
        return
    _frozen = gc.get_freeze_count() > 0
    if not _frozen:
        gc.freeze()
        gc.unfreeze()


_SUSPENDED = {GeneratorType, CoroutineType, AsyncGeneratorType}
"""Types that have a finaliser, and nothing to do in it that an open file or another finaliser does not show."""
_INERT = {*sys.stdlib_module_names} - {"_dbm", "_gdbm"} | {
    *"PIL charset_normalizer cv2 google llvmlite ml_dtypes msgpack numba numpy onnx onnxruntime".split(),
    *"pyclipper requests shapely yaml".split(),
}  # fmt: skip
"""Packages whose extension types without a finaliser only free memory when an object goes."""


def _leave() -> None:
    """Spare the interpreter's exit its three searches for garbage, unless an object has work left to do.

    The searches take 0.1 to 1 s after the first run of a network, whose objects need no finaliser.
    """
    for name, module in [*sys.modules.items()]:
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if isinstance(loader, ExtensionFileLoader) and name.partition(".")[0] not in _INERT:
            return
    objects = gc.get_objects()
    finalised = {kind for kind in {*map(type, objects)} if hasattr(kind, "__del__")} - _SUSPENDED
    std = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # which the interpreter flushes
    known = {id(stream) for wrapper in std for stream in (wrapper, getattr(wrapper, "buffer", None))}
    found = compress(objects, map(finalised.__contains__, map(type, objects)))
    if all(id(o) in known or _is_finished(o) for o in found):
        gc.freeze()


def _is_finished(value: object) -> bool:
    """Return whether an object is a file without data to be written."""
    if not isinstance(value, io.IOBase) or type(value).__module__ != "_io":
        return False
    try:
        return value.closed or isinstance(value, io.RawIOBase) or not value.writable()
    except ValueError:  # its buffer is detached
        return True


if sys.implementation.name == "cpython":
    atexit.register(_leave)
