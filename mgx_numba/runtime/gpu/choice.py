"""Choose the engine that runs plans: a device, or the interpreter where a caller requests it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ...codegen.gpu.driver import device as drivers
from ...codegen.gpu.driver import library
from ...codegen.gpu.driver.device import memory_at
from ...codegen.gpu.driver.hip import hip_memory_at, uses_hip
from ...errors import DeviceError

if TYPE_CHECKING:
    from .engine import Engine
    from .interpreter import InterpreterEngine

__all__ = ["engine", "engine_at", "engines", "interpreted", "missing", "model_of"]

_interpreting: ContextVar[tuple[InterpreterEngine, ...]] = ContextVar("mgx_gpu_interpreting", default=())


@contextlib.contextmanager
def interpreted(devices: int = 1) -> Iterator[None]:
    """Let the interpreter stand in for ``devices`` devices while the block runs, in this thread; no device is
    needed."""
    from .interpreter import InterpreterEngine

    token = _interpreting.set(tuple(InterpreterEngine(number) for number in range(devices)))
    try:
        yield
    finally:
        _interpreting.reset(token)


def missing() -> str:
    """Return why no engine can be used; empty if one can."""
    return "" if _interpreting.get() or uses_hip() else library.missing()


def engine(number: int = 0) -> Engine:
    """Return the engine of the device with this number, or the interpreter within `interpreted`.

    Raises:
        DeviceError: there is no such device.
    """
    standing_in = _interpreting.get()
    if not standing_in:
        if uses_hip():
            from .hip import hip_engine

            return hip_engine(number)
        from .cuda import cuda_engine

        return cuda_engine(number)
    if not 0 <= number < len(standing_in):
        raise DeviceError(f"there is no device {number}; there are {len(standing_in)}")
    return standing_in[number]


def model_of(number: int = 0) -> str:
    """Return the properties by which plans for two devices may differ; within `interpreted` no driver is called.

    Raises:
        DeviceError: there is no device, or the interpreter stands in for it.
    """
    if _interpreting.get():
        raise DeviceError(f"device {number} is the interpreter, which has no model")
    return drivers.model_of(number)


def engines() -> Sequence[Engine]:
    """Return the engines of all devices that this process has used."""
    standing_in = _interpreting.get()
    if standing_in:
        return standing_in
    if uses_hip():
        from .hip import hip_engines

        return hip_engines()
    from .cuda import cuda_engines

    return cuda_engines()


def engine_at(address: int) -> Engine | None:
    """Return the engine whose memory holds an address; None for host memory. No device is opened for this."""
    standing_in = _interpreting.get()
    if standing_in:
        return next((one for one in standing_in if one.holds(address)), None)
    number = memory_at(address)
    number = hip_memory_at(address) if number is None else number
    return None if number is None else engine(number)
