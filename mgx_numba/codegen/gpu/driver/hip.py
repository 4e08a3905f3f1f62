"""AMD's run time for GPUs, libamdhip64, through ctypes: functions, errors, devices and what is loaded there.

Names and numbers are those of HIP's hip_runtime_api.h. Never run on an AMD GPU: tests stand in for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from ....errors import DeviceError
from ..architecture import ARCHITECTURES, Architecture
from .library import Library, missing

__all__ = [
    "HipDevice", "HipRuntime", "hip_architecture", "hip_device", "hip_device_count", "hip_memory_at", "hip_missing",
    "hip_runtime", "uses_hip",
]  # fmt: skip

_NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
LEAST_VERSION = 50700000
"""Version (10,000,000 major + 100,000 minor + patch) from which on ROCm loads code object 5."""
_PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""The function from HIP 6 on, and before: they fill different structures, both with the architecture's name."""
_PROPERTIES_BYTES = 4096
"""More than any of these structures has: 1472 in HIP 6."""
_NEW_KINDS = 60000000
"""Version from which on hipMemoryTypeDevice is 2; before it was 1. It comes first in what tells of a pointer, then the
device."""
_ARCHITECTURE = re.compile(rb"(gfx[0-9a-f]{3,4})[\0:]")


class HipRuntime(Library):
    """The functions of libamdhip64: ``runtime.call("hipMalloc", ...)``."""

    vendor = "AMD's HIP"

    def __init__(self, library: Any) -> None:
        """Initialise it.

        Raises:
            DeviceError: it is too old or cannot be initialised.
        """
        super().__init__(library)
        self.call("hipInit", 0)
        version = c_int()
        self.call("hipRuntimeGetVersion", byref(version))
        self.version = version.value
        if self.version < LEAST_VERSION:
            raise DeviceError(f"AMD's HIP is {_shown(self.version)}; {_shown(LEAST_VERSION)} is needed")

    def name_of(self, status: int) -> str:
        """See `Library.name_of`."""
        function = self.library.hipGetErrorName
        function.restype = c_char_p
        told = function(status)
        return told.decode() if isinstance(told, bytes) else ""


def _shown(version: int) -> str:
    return f"{version // 10_000_000}.{version // 100_000 % 100}"


class HipDevice:
    """A device of this process.

    Attributes:
        number: its number, from 0.
        name: as HIP calls it.
        architecture: what kernels are compiled for.
        functions: handles of the kernels that are loaded, by symbol.
    """

    def __init__(self, number: int) -> None:
        """Raises:
        DeviceError: there is no such device, or none that kernels can be compiled for.
        """
        self.driver: HipRuntime = hip_runtime()
        self.number = number
        self.architecture: Architecture = hip_architecture(number)
        name = ctypes.create_string_buffer(256)
        self.driver.call("hipDeviceGetName", name, 256, number)
        self.name = name.value.decode()
        self._lock = threading.Lock()
        self.functions: dict[str, int] = {}

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """While the block runs, it is the calling thread's device; then the one before is again."""
        before = c_int()
        self.driver.call("hipGetDevice", byref(before))
        if before.value != self.number:
            self.driver.call("hipSetDevice", self.number)
        try:
            yield
        finally:
            if before.value != self.number:
                self.driver.call("hipSetDevice", before.value)

    def synchronize(self) -> None:
        """Wait for all that any stream of this process has to do.

        Raises:
            DeviceError: something failed.
        """
        with self.use():
            self.driver.call("hipDeviceSynchronize")

    def room(self) -> tuple[int, int]:
        """Bytes of its memory that are free, and all of them."""
        free, total = c_size_t(), c_size_t()
        with self.use():
            self.driver.call("hipMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def function(self, symbol: str, code: bytes) -> int:
        """Handle of a kernel of a code object, loaded unless it is already; it stays until the process ends.

        Raises:
            DeviceError: HIP cannot load it.
        """
        with self._lock, self.use():
            if symbol not in self.functions:
                module, function = c_void_p(), c_void_p()
                self.driver.call("hipModuleLoadData", byref(module), code)
                self.driver.call("hipModuleGetFunction", byref(function), module, symbol.encode())
                assert function.value is not None
                self.functions[symbol] = function.value
            return self.functions[symbol]


def hip_architecture(number: int) -> Architecture:
    """What kernels for a device are compiled for.

    Raises:
        DeviceError: there is no such device, or none that kernels can be compiled for.
    """
    if not 0 <= number < hip_device_count():
        raise DeviceError(f"there is no device {number}; there are {hip_device_count()}")
    runtime, properties = hip_runtime(), ctypes.create_string_buffer(_PROPERTIES_BYTES)
    known = [name for name in _PROPERTIES if hasattr(runtime.library, name)]
    runtime.call(known[0] if known else _PROPERTIES[0], properties, number)
    found = _ARCHITECTURE.search(properties.raw)
    name = found[1].decode() if found else "one without a name"
    if name not in ARCHITECTURES:
        fitting = ", ".join(a.name for a in ARCHITECTURES.values() if not a.nvidia)
        raise DeviceError(f"device {number} is {name}; kernels are compiled for {fitting}")
    return ARCHITECTURES[name]


@functools.lru_cache(maxsize=1)
def hip_runtime() -> HipRuntime:
    """HIP of this process, initialised.

    Raises:
        DeviceError: there is none, or it is too old or cannot be initialised.
    """
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return HipRuntime(library)
    raise DeviceError(f"AMD's HIP is not installed: {_NAMES[-1]} cannot be loaded")


def hip_missing() -> str:
    """Why no device can be used; empty if one can."""
    try:
        return "" if hip_device_count() else "AMD's HIP finds no device"
    except DeviceError as error:
        return str(error)


def uses_hip() -> bool:
    """Whether AMD's devices are what this process has: NVIDIA's driver finds none, and HIP does."""
    return bool(missing()) and not hip_missing()


def hip_memory_at(address: int) -> int | None:
    """The number of the device in whose memory an address lies; None if it is the host's. Nothing is loaded for it."""
    if not hip_runtime.cache_info().currsize:
        return None
    runtime, told = hip_runtime(), (c_int * 16)()
    if not runtime.succeeds("hipPointerGetAttributes", byref(told), c_void_p(address)):
        return None
    of_device = 2 if runtime.version >= _NEW_KINDS else 1
    return told[1] if told[0] == of_device else None


def hip_device_count() -> int:
    """How many devices HIP finds.

    Raises:
        DeviceError: there is no HIP.
    """
    count = c_int()
    hip_runtime().call("hipGetDeviceCount", byref(count))
    return count.value


@functools.lru_cache(maxsize=64)
def hip_device(number: int = 0) -> HipDevice:
    """A device of this process; the same object for the same number.

    Raises:
        DeviceError: there is none.
    """
    return HipDevice(number)
