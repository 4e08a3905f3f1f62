"""Driver libraries of GPUs: functions by name, with status codes raised as errors; devices and their loaded kernels.

NVIDIA's library is loaded when a device is first needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any, ClassVar

from ....errors import DeviceError

_NAMES = ("libcuda.so.1", "libcuda.so")
LEAST_VERSION = 12000
"""Least CUDA version of the driver (1000 major + 10 minor): graphs are instantiated with flags, and modules load
lazily."""

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY and hipErrorOutOfMemory."""
_STICKY = {
    700: "a kernel read or wrote memory that it may not touch",
    701: "a kernel wants more registers than there are",
    702: "a kernel ran longer than the system allows",
    710: "a kernel stopped at an assertion",
    714: "a kernel's stack failed",
    715: "a kernel has an instruction that the device does not know",
    716: "a kernel used an address that is not aligned",
    717: "a kernel used an address in the wrong space",
    718: "a kernel jumped to where there is no instruction",
    719: "a kernel failed, at a trap perhaps",
}
"""CUresult codes that make a context unusable, with explanations; HIP's have the same numbers."""


class Library:
    """Functions of a driver library, called by name; they return a status, 0 for success."""

    vendor = "NVIDIA's driver"
    count_function: ClassVar[str]

    def __init__(self, library: Any) -> None:
        self.library = library
        self.process = os.getpid()

    def initialise(self, start: str, version: str) -> int:
        """Initialise the driver by its function `start`; return the version that the function `version` gives.

        Raises:
            DeviceError: the driver cannot be initialised.
        """
        self.call(start, 0)
        return self.integer(version)

    def integer(self, name: str, *arguments: object) -> int:
        """Call a function that stores an integer at its first argument; return the integer.

        Raises:
            DeviceError: the function fails, see `call`.
        """
        value = c_int()
        self.call(name, byref(value), *arguments)
        return value.value

    def device_count(self) -> int:
        """Return the number of devices.

        Raises:
            DeviceError: the function fails, see `call`.
        """
        return self.integer(self.count_function)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            DeviceError: the function does not exist, returns an error, or the process is a fork of the one that
                initialised the driver.
        """
        if self.forked:
            raise DeviceError(
                f"{name}: the GPU was in use when this process was forked; a fork cannot use it (start new processes)"
            )
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise DeviceError(f"{self.vendor} has no {name}; a newer driver is needed") from None
        status = function(*arguments)
        if status:
            raise DeviceError(self.describe(name, status))

    @property
    def forked(self) -> bool:
        """Return whether this process is a fork of the one that initialised the driver."""
        return os.getpid() != self.process

    def succeeds(self, name: str, *arguments: object) -> bool:
        """Call a function that may fail; return whether it succeeded. After a fork it is not called."""
        return not self.forked and getattr(self.library, name)(*arguments) == 0

    def bound(self, name: str) -> Callable[..., None]:
        """Return a function as a fast callable: like `call`, without the lookup and the check for forks."""
        function, describe = getattr(self.library, name), self.describe

        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                raise DeviceError(describe(name, status))

        return call

    def address(self, name: str) -> int:
        """Return the address of a function; 0 if this driver has none of this name."""
        try:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    def describe(self, name: str, status: int) -> str:
        """Return the message of a failed call."""
        code = self.name_of(status) or f"status {status}"
        if status == OUT_OF_MEMORY:
            return f"{name}: the device has not enough memory ({code})"
        if status in _STICKY:
            return f"{name}: {_STICKY[status]} ({code}); the device is lost to this process"
        return f"{name} failed: {code}"

    def name_of(self, status: int) -> str:
        """Return the library's name of a status; "" if unknown."""
        raise NotImplementedError


class DriverDevice:
    """A device of a driver library, with its loaded kernels.

    Attributes:
        driver: the library.
        number: device number, from 0.
        name: the library's name of the device.
        functions: handles of loaded kernels by symbol.
    """

    synchronize_function: ClassVar[str]
    memory_function: ClassVar[str]
    load_function: ClassVar[str]
    kernel_function: ClassVar[str]

    def __init__(self, driver: Library, number: int, name: str) -> None:
        self.driver = driver
        self.number = number
        self.name = name
        self.functions: dict[str, int] = {}
        self._lock = threading.Lock()

    def use(self) -> AbstractContextManager[None]:
        """Return a context manager that makes the device current in the calling thread, and restores the previous
        one."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for all work of this process on the device.

        Raises:
            DeviceError: some work failed.
        """
        with self.use():
            self.driver.call(self.synchronize_function)

    def room(self) -> tuple[int, int]:
        """Return the free and the total device memory in bytes."""
        free, total = c_size_t(), c_size_t()
        with self.use():
            self.driver.call(self.memory_function, byref(free), byref(total))
        return free.value, total.value

    def function(self, symbol: str, code: bytes) -> int:
        """Return the handle of a kernel, loading it from machine code or text once per process.

        Raises:
            DeviceError: the driver cannot load it.
        """
        with self._lock, self.use():
            if symbol not in self.functions:
                module, function = c_void_p(), c_void_p()
                self.driver.call(self.load_function, byref(module), code + b"\0")
                self.driver.call(self.kernel_function, byref(function), module, symbol.encode())
                assert function.value is not None
                self.prepare(function)
                self.functions[symbol] = function.value
            return self.functions[symbol]

    def prepare(self, function: c_void_p) -> None:
        """Configure a newly loaded kernel before its first launch."""


class Driver(Library):
    """Functions of libcuda: ``driver.call("cuMemAlloc_v2", ...)``."""

    count_function = "cuDeviceGetCount"

    def __init__(self, library: Any) -> None:
        """Initialise the driver.

        Raises:
            DeviceError: it is too old or cannot be initialised.
        """
        super().__init__(library)
        self.version = self.initialise("cuInit", "cuDriverGetVersion")
        if self.version < LEAST_VERSION:
            raise DeviceError(f"NVIDIA's driver is for CUDA {_shown(self.version)}; {_shown(LEAST_VERSION)} is needed")

    def name_of(self, status: int) -> str:
        text = ctypes.c_char_p()
        known = self.library.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value is not None
        return text.value.decode() if known and text.value is not None else ""


def _shown(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@functools.lru_cache(maxsize=1)
def driver() -> Driver:
    """Return the process's initialised driver.

    Raises:
        DeviceError: it is missing, too old, or cannot be initialised.
    """
    library = first_library(_NAMES)
    if library is None:
        raise DeviceError(f"NVIDIA's driver is not installed: {_NAMES[0]} cannot be loaded")
    return Driver(library)


@functools.cache
def first_library(names: tuple[str, ...]) -> ctypes.CDLL | None:
    """Load the first library that exists, None if none does; cached, because a failed search is slow."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def loaded() -> Driver | None:
    """Return the driver if this process has loaded its library already, by whomever; else None."""
    for name in _NAMES:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
        except OSError:
            continue
        if first_library(_NAMES) is None:  # another module loaded it after the search, from a folder of its own
            first_library.cache_clear()
        with contextlib.suppress(DeviceError):
            return driver()
    return None


def missing() -> str:
    """Return the reason why no device can be used; "" if one can."""
    try:
        return "" if driver().device_count() else "NVIDIA's driver finds no device"
    except DeviceError as error:
        return str(error)
