"""AMD's GPU runtime libamdhip64 through ctypes: functions, errors, devices and loaded modules.

Names and numbers are those of HIP's hip_runtime_api.h. Never run on an AMD GPU: tests use a stand-in.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_void_p

from ....errors import DeviceError
from ..architecture import ARCHITECTURES, Architecture
from .library import DriverDevice, Library, first_library, missing

_NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
LEAST_VERSION = 50700000
"""Least version (10,000,000 major + 100,000 minor + patch): ROCm loads code object 5 from it on."""
_PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""Property function of HIP 6 and later, and of earlier versions. Their structures differ; both contain the
architecture's name."""
_PROPERTIES_BYTES = 4096
"""Buffer size that exceeds every version of the structure: 1472 in HIP 6."""
_NEW_KINDS = 60000000
"""Version from which hipMemoryTypeDevice is 2 instead of 1. The pointer attributes begin with the memory type, then the
device."""
_ARCHITECTURE = re.compile(rb"(gfx[0-9a-f]{3,4})[\0:]")


class HipRuntime(Library):
    """Functions of libamdhip64: ``runtime.call("hipMalloc", ...)``."""

    vendor = "AMD's HIP"
    count_function = "hipGetDeviceCount"

    def __init__(self, library: ctypes.CDLL) -> None:
        """Initialise the runtime.

        Raises:
            DeviceError: it is too old or cannot be initialised.
        """
        super().__init__(library)
        self.version = self.initialise("hipInit", "hipRuntimeGetVersion")
        if self.version < LEAST_VERSION:
            raise DeviceError(f"AMD's HIP is {_shown(self.version)}; {_shown(LEAST_VERSION)} is needed")

    def name_of(self, status: int) -> str:
        function = self.library.hipGetErrorName
        function.restype = c_char_p
        told = function(status)
        return told.decode() if isinstance(told, bytes) else ""


def _shown(version: int) -> str:
    return f"{version // 10_000_000}.{version // 100_000 % 100}"


class HipDevice(DriverDevice):
    """An AMD device.

    Attributes:
        architecture: architecture to compile kernels for.
    """

    synchronize_function, memory_function = "hipDeviceSynchronize", "hipMemGetInfo"
    load_function, kernel_function = "hipModuleLoadData", "hipModuleGetFunction"

    def __init__(self, number: int) -> None:
        """Open a device.

        Raises:
            DeviceError: the device does not exist or is not supported.
        """
        self.architecture: Architecture = hip_architecture(number)
        name = ctypes.create_string_buffer(256)
        hip_runtime().call("hipDeviceGetName", name, 256, number)
        super().__init__(hip_runtime(), number, name.value.decode())

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Make the device current in the calling thread within the ``with`` block."""
        before = self.driver.integer("hipGetDevice")
        if before != self.number:
            self.driver.call("hipSetDevice", self.number)
        try:
            yield
        finally:
            if before != self.number:
                self.driver.call("hipSetDevice", before)


def hip_architecture(number: int) -> Architecture:
    """Return the architecture to compile for.

    Raises:
        DeviceError: the device does not exist or is not supported.
    """
    runtime, properties = hip_runtime(), ctypes.create_string_buffer(_PROPERTIES_BYTES)
    if not 0 <= number < runtime.device_count():
        raise DeviceError(f"there is no device {number}; there are {runtime.device_count()}")
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
    """Return the process's initialised HIP runtime.

    Raises:
        DeviceError: it is missing, too old, or cannot be initialised.
    """
    library = first_library(_NAMES)
    if library is None:
        raise DeviceError(f"AMD's HIP is not installed: {_NAMES[-1]} cannot be loaded")
    return HipRuntime(library)


def hip_missing() -> str:
    """Return the reason why no AMD device can be used; "" if one can."""
    try:
        return "" if hip_runtime().device_count() else "AMD's HIP finds no device"
    except DeviceError as error:
        return str(error)


def uses_hip() -> bool:
    """Return whether this process uses AMD devices: NVIDIA's driver finds none and HIP does."""
    try:
        return _amd_found()
    except DeviceError:
        return False


@functools.lru_cache(maxsize=1)
def _amd_found() -> bool:
    """Return `uses_hip`, cached once a device is found, because every array asks.

    Raises:
        DeviceError: no device is found so far.
    """
    if not missing():
        return False
    problem = hip_missing()
    if problem:
        raise DeviceError(problem)
    return True


def hip_memory_at(address: int) -> int | None:
    """Return the number of the device that owns an address; None for host memory. Does not load HIP."""
    if not hip_runtime.cache_info().currsize:
        return None
    runtime, told = hip_runtime(), (c_int * 16)()
    if not runtime.succeeds("hipPointerGetAttributes", byref(told), c_void_p(address)):
        return None
    of_device = 2 if runtime.version >= _NEW_KINDS else 1
    return told[1] if told[0] == of_device else None


@functools.lru_cache(maxsize=64)
def hip_device(number: int = 0) -> HipDevice:
    """Return the process's `HipDevice` of a number.

    Raises:
        DeviceError: it does not exist.
    """
    return HipDevice(number)
