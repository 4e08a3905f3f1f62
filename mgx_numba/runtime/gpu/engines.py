"""Choose the engine that runs plans: a device, or the engine that a test substitutes for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol

from ...codegen.gpu.driver import device as drivers
from ...codegen.gpu.driver import library
from ...codegen.gpu.driver.device import memory_at
from ...codegen.gpu.driver.hip import hip_memory_at, uses_hip
from ...errors import DeviceError
from .engine import Engine


class Substitute(Engine, Protocol):
    """An engine that a test provides in place of a device."""

    def holds(self, address: int) -> bool:
        """Return whether an address belongs to this engine's memory."""


_substitutes: ContextVar[Sequence[Substitute]] = ContextVar("mgx_gpu_substitutes", default=())


@contextlib.contextmanager
def substituted(engines: Sequence[Substitute]) -> Iterator[None]:
    """Use ``engines`` in place of the machine's devices while the block runs, in this thread; no driver is called.

    This is the only way by which tests run plans on the interpreter (``tests/interpreter``).
    """
    token = _substitutes.set(engines)
    try:
        yield
    finally:
        _substitutes.reset(token)


def missing() -> str:
    """Return why no engine can be used; empty if one can."""
    return "" if _substitutes.get() or uses_hip() else library.missing()


def engine(number: int = 0) -> Engine:
    """Return the engine of the device with this number, or its substitute within `substituted`.

    Raises:
        DeviceError: there is no such device.
    """
    substitutes = _substitutes.get()
    if not substitutes:
        if uses_hip():
            from .hip import hip_engine

            return hip_engine(number)
        from .cuda import cuda_engine

        return cuda_engine(number)
    if not 0 <= number < len(substitutes):
        raise DeviceError(f"there is no device {number}; there are {len(substitutes)}")
    return substitutes[number]


def model_of(number: int = 0) -> str:
    """Return the properties by which plans for two devices may differ; no driver is called within `substituted`.

    Raises:
        DeviceError: there is no device, or an engine is substituted for it.
    """
    if _substitutes.get():
        raise DeviceError(f"device {number} has a substitute, which has no model")
    return drivers.model_of(number)


def engines() -> Sequence[Engine]:
    """Return the engines of all devices that this process has used."""
    substitutes = _substitutes.get()
    if substitutes:
        return substitutes
    if uses_hip():
        from .hip import hip_engines

        return hip_engines()
    from .cuda import cuda_engines

    return cuda_engines()


def engine_at(address: int) -> Engine | None:
    """Return the engine whose memory holds an address; None for host memory. No device is opened for this."""
    substitutes = _substitutes.get()
    if substitutes:
        return next((one for one in substitutes if one.holds(address)), None)
    number = memory_at(address)
    number = hip_memory_at(address) if number is None else number
    return None if number is None else engine(number)
