"""Python's functions with which native code runs signal handlers and passes on their errors."""

from __future__ import annotations

import ctypes
import sys
import threading

from .spmd import Pool

_FUNCTIONS = {
    Pool.IDENT: "PyThread_get_thread_ident",
    Pool.ENSURE: "PyGILState_Ensure",
    Pool.RELEASE: "PyGILState_Release",
    Pool.CHECK: "PyErr_CheckSignals",
    Pool.FETCH: "PyErr_Fetch",
}


def native_functions() -> dict[int, int]:
    """Return the words of the pool that `LOOK` needs: the id of Python's main thread, and addresses of Python
    functions.

    Only the main thread runs signal handlers. The functions belong to the stable interface. The result is empty where
    the interpreter is not CPython.
    """
    if sys.implementation.name != "cpython":
        return {}
    found = {word: getattr(ctypes.pythonapi, name) for word, name in _FUNCTIONS.items()}
    words = {word: ctypes.cast(function, ctypes.c_void_p).value or 0 for word, function in found.items()}
    return {Pool.MAIN: threading.main_thread().ident or 0, **words}


def restore_error(kind: int, value: int, traceback: int) -> None:
    """Raise an error that ``PyErr_Fetch`` returned, taking over its references; zeros stand for None."""
    prototype = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    prototype(("PyErr_Restore", ctypes.pythonapi))(kind, value, traceback)
