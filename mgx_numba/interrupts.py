"""Protection of imports and process-wide state of other packages against interrupts (Ctrl-C).

Python runs signal handlers, and so raises `KeyboardInterrupt`, only in the main thread. A package that is interrupted
while it is imported stays half imported: Numba, for one, can never be imported again. Work in another thread is not
interrupted, while the main thread waits for it and can be interrupted.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from types import ModuleType
from typing import Any, TypeVar

from .garbage import uncollected

T = TypeVar("T")


def unbroken(function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``; an interrupt is raised at once, while the function completes in another thread.

    Context variables have the caller's values there. The function must protect its state from concurrent calls by a
    lock that the caller does not hold. Its errors are raised here. The thread costs some 50 microseconds.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:  # raised by the waiting thread
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="mgx-unbroken", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results.pop()


def whole_module(name: str) -> ModuleType:
    """Return a module by its full name; an import that is needed cannot be interrupted.

    Do not call this function while modules of this package are imported: the other thread would wait for this thread.
    """
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        with uncollected():
            module = unbroken(importlib.import_module, name)
    return module
