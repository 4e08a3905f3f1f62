"""What an interrupt (Ctrl-C) must not cut in two: imports, and state that other packages keep for the whole process.

Python runs the handlers of signals, and so raises `KeyboardInterrupt`, in the main thread alone. A package that is
interrupted while it is imported stays in pieces: Numba, for one, can never be imported again. What runs in another
thread is not interrupted, while the main thread waits for it and can be.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from .garbage import uncollected

__all__ = ["unbroken", "whole_module"]

T = TypeVar("T")


def unbroken(function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``; an interrupt is raised at once, while the function goes on to its end in another thread.

    So it must keep other calls off what it changes by a lock that the caller does not hold. What it raises is raised
    here. A thread costs some 50 microseconds.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:  # for whoever waits
            errors.append(error)

    thread = threading.Thread(target=run, name="mgx-unbroken", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results.pop()


def whole_module(name: str) -> ModuleType:
    """A module by its full name, imported as a whole if it has to be.

    Not to be called while modules of this package are imported: the other thread would wait for this one.
    """
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        with uncollected():
            module = unbroken(importlib.import_module, name)
    return module
