"""Protection of imports and process-wide state of other packages against interrupts (Ctrl-C).

Python runs signal handlers, and so raises `KeyboardInterrupt`, only in the main thread. A package that is interrupted
while it is imported stays half imported: Numba, for one, can never be imported again. Brief work delays the handlers
(`handlers_later`). Long work runs in another thread (`unbroken`): the main thread waits for it and can be interrupted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # importing `signal` takes half a millisecond
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import FrameType, ModuleType
from typing import TypeVar

from .garbage import uncollected

T = TypeVar("T")
_NUMBERS = range(1, _signal.NSIG)


@contextmanager
def handlers_later() -> Iterator[None]:
    """Run signal handlers of Python functions only after the block; for blocks of some milliseconds.

    Unlike a thread, the block costs some microseconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[Callable[[int, FrameType | None], object], int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append((handlers[number], number, frame))

    handlers = {number: found for number in _NUMBERS if callable(found := _signal.getsignal(number))}
    try:
        with suppress(ValueError):  # a host application's thread that is not the main interpreter's
            for number in handlers:
                _signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            if _signal.getsignal(number) is note:  # else the block has set another
                _signal.signal(number, handler)
        for handler, number, frame in arrived:
            handler(number, frame)


def unbroken(function: Callable[..., T], *args: object) -> T:
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

    Modules of this package take milliseconds to import, other packages may take a second.
    """
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        with uncollected():
            if name.partition(".")[0] != __package__:
                return unbroken(importlib.import_module, name)
            with handlers_later():
                return importlib.import_module(name)
    return module
