"""Python's search for cyclic garbage, put off while very many objects are made that soon are free without it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]

_lock = threading.Lock()
_inside = 0
_enabled = False
_frozen = False


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cyclic garbage meanwhile, in any thread of the process; afterwards it is as it was, but for objects
    that were young, which are old.

    A search begins each so many new objects and looks at all that are young; each time that these are a quarter of the
    old ones it looks at all of the process, a third of a second for half a million. Some ten thousand objects that live
    for milliseconds so cost more than they do. May be used inside of itself, and in several threads at once.
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
    """Let what is young be old: the search that the many new objects would begin at once finds nothing of them.

    ``freeze`` and ``unfreeze`` move lists of objects whole; nothing is looked at. They leave alone a process that has
    frozen objects itself, which is asked only until it has: the count is made by going through them all.
    """
    global _frozen
    if sys.implementation.name != "cpython" or _frozen:
        return
    _frozen = gc.get_freeze_count() > 0
    if not _frozen:
        gc.freeze()
        gc.unfreeze()
