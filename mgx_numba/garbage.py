"""Suspension of cyclic garbage collection while very many short-lived objects are made."""

from __future__ import annotations

import gc
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
