"""Suspension of cyclic garbage collection while very many short-lived objects are made, and at exit."""

from __future__ import annotations

import atexit
import gc
import io
import sys
import threading
from contextlib import ContextDecorator

_lock = threading.Lock()
_inside = 0
_enabled = False
_frozen = False


class _Uncollected(ContextDecorator):
    """See `uncollected`."""

    def __enter__(self) -> None:
        global _inside, _enabled
        with _lock:
            if _inside == 0:
                _enabled = gc.isenabled()
                gc.disable()
            _inside += 1

    def __exit__(self, *_: object) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if _inside == 0 and _enabled:
                _look_later()
                gc.enable()


def uncollected() -> _Uncollected:
    """Suspend cyclic garbage collection in all threads within the context; young objects become old at its end.

    A collection starts after a fixed number of new objects and visits all young objects. Whenever these reach a quarter
    of the old objects, it visits the whole process: a third of a second for half a million objects. For some ten
    thousand objects that live for milliseconds, collection would cost more than their work. The context may be nested,
    and used by several threads at once. It may decorate a function.
    """
    return _Uncollected()


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


def _has_finalisers() -> bool:
    """Return whether freeing an object may have an effect, such as writing the end of a file."""
    objects = gc.get_objects()
    try:
        types = {one for one in set(map(type, objects)) if any("__del__" in vars(base) for base in one.__mro__)}
        return any(_has_effect(one) for one in objects if type(one) in types)
    except Exception:  # of a metaclass of others, such as one without hashes
        return True


def _has_effect(value: object) -> bool:
    """Return whether freeing an object of a type with ``__del__`` may have an effect."""
    if type(value) is io.BytesIO or type(value) is io.StringIO:
        return False
    try:
        return not isinstance(value, io.IOBase) or (not value.closed and value.fileno() > 2)  # 0 to 2: sys.stdin ...
    except Exception:  # of a class of others
        return True


@atexit.register
def _collect_less() -> None:
    """Leave the objects of reference cycles to the end of the process, unless one has a finaliser.

    At exit the interpreter visits all objects twice, and frees those of reference cycles: 0.1 s for the 100,000 objects
    of a process that has compiled a network. Objects with finalisers may be garbage: they are collected, once, before
    modules are cleared. If others are in use, the interpreter's second visit finalises them as usual.
    """
    if sys.implementation.name != "cpython" or not gc.isenabled():
        return
    if _has_finalisers():
        gc.collect()
        gc.disable()  # the first visit is done
        if _has_finalisers():
            return
    gc.freeze()
