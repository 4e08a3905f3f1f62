"""Which engine runs plans: a device, or the interpreter where that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from .cuda import cuda_engine
from .engine import Engine
from .interpreter import InterpreterEngine

__all__ = ["engine", "interpreted"]

_interpreting: ContextVar[bool] = ContextVar("mgx_gpu_interpreting", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """While the block runs, in this thread, plans are made for the interpreter: no device is needed."""
    token = _interpreting.set(True)
    try:
        yield
    finally:
        _interpreting.reset(token)


def engine(number: int = 0) -> Engine:
    """The device of this number, or the interpreter within `interpreted`.

    Raises:
        DeviceError: there is none.
    """
    if _interpreting.get():
        return InterpreterEngine()
    return cuda_engine(number)
