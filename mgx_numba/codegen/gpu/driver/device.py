"""An NVIDIA device: its properties, context, loaded kernels and memory queries."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from ....errors import CompileError, DeviceError
from ..architecture import Architecture, chosen, device_in_use, for_capability
from .hip import hip_architecture, hip_device, uses_hip
from .library import Driver, DriverDevice, driver, loaded

# CUdevice_attribute and CUjit_option of cuda.h.
_MULTIPROCESSORS, _MAJOR, _MINOR, _L2_BYTES, _SHARED_BYTES = 16, 75, 76, 38, 97
_CLOCK, _MEMORY_CLOCK, _MEMORY_BITS = 13, 36, 37  # kHz, kHz, bits of the bus
_KILO = 1000.0
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_INPUT_PTX = 1
_DYNAMIC_SHARED = 8
_LOG_BYTES = 16 << 10
# CUpointer_attribute and CUmemorytype of cuda.h.
_MEMORY_TYPE, _BUFFER, _ORDINAL = 2, 7, 9
_OF_HOST = 1


class Device(DriverDevice):
    """A device and this process's context on it.

    Attributes:
        multiprocessors, l2_bytes, shared_bytes: properties; shared memory is the most per block.
        clock, bandwidth: peak rates in Hz and bytes/s; data move at both edges of the memory's clock.
        architecture: architecture to compile kernels for.
    """

    driver: Driver
    synchronize_function, memory_function = "cuCtxSynchronize", "cuMemGetInfo_v2"
    load_function, kernel_function = "cuModuleLoadData", "cuModuleGetFunction"

    def __init__(self, number: int) -> None:
        """Open the device's primary context, which is shared with other libraries of the process.

        Raises:
            DeviceError: the device does not exist or is not supported.
        """
        self._handle = handle = _handle(number)
        super().__init__(driver(), number, _name(handle))
        context = c_void_p()
        self.architecture: Architecture = architecture_of(number)
        self.multiprocessors = _attribute(handle, _MULTIPROCESSORS)
        self.l2_bytes = _attribute(handle, _L2_BYTES)
        self.shared_bytes = _attribute(handle, _SHARED_BYTES)
        self.clock = _KILO * _attribute(handle, _CLOCK)
        cycles = _KILO * _attribute(handle, _MEMORY_CLOCK)
        self.bandwidth = 2 * cycles * _attribute(handle, _MEMORY_BITS) / 8  # two transfers a cycle
        self.driver.call("cuDevicePrimaryCtxRetain", byref(context), handle)
        self.context = context
        self.current = self.driver.bound("cuCtxGetCurrent")
        self._allowed: dict[int, int] = {}

    def use(self) -> _InUse:
        """Return a context manager that makes the device's context current in the calling thread, and restores the
        previous one."""
        return _InUse(self)

    def is_pinned(self, address: int, size: int) -> bool:
        """Return whether ``size`` bytes (at least one) are one piece of pinned host memory. Takes 2 us with an H200, 1
        us for memory that is not pinned."""
        kind, first, last = c_uint(), c_ulonglong(), c_ulonglong()
        asked = ((_MEMORY_TYPE, kind, address), (_BUFFER, first, address), (_BUFFER, last, address + size - 1))
        for attribute, place, at in asked:
            if not self.driver.succeeds("cuPointerGetAttribute", byref(place), attribute, c_void_p(at)):
                return False
        return kind.value == _OF_HOST and first.value == last.value

    def cubin(self, ptx: bytes) -> bytes:
        """Assemble PTX to machine code with the driver.

        Raises:
            CompileError: the assembler reports an error; the message contains its log.
        """
        log = ctypes.create_string_buffer(_LOG_BYTES)
        keys, values = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES), (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        state, data, size = c_void_p(), c_void_p(), c_size_t()
        with self.use():
            self.driver.call("cuLinkCreate_v2", c_uint(2), keys, values, byref(state))
            try:
                text = ptx + b"\0"
                self.driver.call(
                    "cuLinkAddData_v2", state, _INPUT_PTX, text, c_size_t(len(text)), b"kernel", c_uint(0), None, None
                )
                self.driver.call("cuLinkComplete", state, byref(data), byref(size))
                return ctypes.string_at(data, size.value)
            except DeviceError as error:
                raise CompileError(f"{error}: {log.value.decode(errors='replace').strip()}") from None
            finally:
                self.driver.call("cuLinkDestroy", state)

    def prepare(self, function: c_void_p) -> None:
        """See `DriverDevice.prepare`; load the kernel's code, which the first launch does else."""
        if self.driver.address("cuFuncLoad"):  # from CUDA 12.4 on
            self.driver.call("cuFuncLoad", function)

    def allow_shared(self, function: int, size: int) -> None:
        """Allow launches of a kernel up to ``size`` bytes of dynamic shared memory."""
        if size <= self._allowed.get(function, 0):
            return
        with self._lock:
            if size > self._allowed.get(function, 0):
                self.driver.call("cuFuncSetAttribute", c_void_p(function), _DYNAMIC_SHARED, size)
                self._allowed[function] = size


@functools.lru_cache(maxsize=64)
def architecture_of(number: int) -> Architecture:
    """Return the architecture to compile for, without opening the device.

    Raises:
        DeviceError: the device does not exist or is not supported.
    """
    handle = _handle(number)
    capability = _attribute(handle, _MAJOR), _attribute(handle, _MINOR)
    found = for_capability(capability)
    if found is None:
        raise DeviceError(f"{_name(handle)} has compute capability {capability}; 7.5 or higher is needed")
    return found


def selected_architecture() -> Architecture:
    """Return the architecture to compile for: the named one, else that of the device in use (`device_in_use`).

    Raises:
        DeviceError: none is named and there is no device.
    """
    found = chosen()
    if found is None:
        number = device_in_use()
        found = hip_architecture(number) if uses_hip() else architecture_of(number)
    return found


def known_architecture() -> Architecture | None:
    """Return `selected_architecture`, or None if none is named and there is no device."""
    try:
        return selected_architecture()
    except DeviceError:
        return None


def model_of(number: int) -> str:
    """Return the device's name and multiprocessors, which plans depend on, without opening it.

    Raises:
        DeviceError: the device does not exist.
    """
    if uses_hip():
        return hip_device(number).name
    handle = _handle(number)
    return model_name(_name(handle), _attribute(handle, _MULTIPROCESSORS))


def model_name(name: str, multiprocessors: int) -> str:
    """Return the text of `model_of`."""
    return f"{name}, {multiprocessors} multiprocessors"


def _handle(number: int) -> c_int:
    if not 0 <= number < device_count():
        raise DeviceError(f"there is no device {number}; there are {device_count()}")
    return c_int(driver().integer("cuDeviceGet", number))


def _name(handle: c_int) -> str:
    name = ctypes.create_string_buffer(256)
    driver().call("cuDeviceGetName", name, 256, handle)
    return name.value.decode()


def _attribute(handle: c_int, number: int) -> int:
    return driver().integer("cuDeviceGetAttribute", number, handle)


class _InUse:
    """See `Device.use`."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before: int | None = None

    def __enter__(self) -> None:
        found, device = c_void_p(), self._device
        if device.driver.forked:
            device.driver.call("cuCtxSetCurrent", device.context)  # says what is wrong
        device.current(byref(found))
        self._before = found.value
        if self._before != device.context.value:
            device.driver.call("cuCtxSetCurrent", device.context)

    def __exit__(self, *_: object) -> None:
        if self._before is not None and self._before != self._device.context.value:
            self._device.driver.call("cuCtxSetCurrent", c_void_p(self._before))


def memory_at(address: int) -> int | None:
    """Return the number of the device that owns an address; None for host memory, pinned or not. Does not load the
    driver: without it no device owns memory."""
    found = loaded()
    if found is None:
        return None
    kind, ordinal = c_uint(), c_int()
    for attribute, place in ((_MEMORY_TYPE, kind), (_ORDINAL, ordinal)):
        if not found.succeeds("cuPointerGetAttribute", byref(place), attribute, c_void_p(address)):
            return None
    return None if kind.value == _OF_HOST else ordinal.value


def device_count() -> int:
    """Return the number of devices.

    Raises:
        DeviceError: there is no driver.
    """
    return driver().device_count()


def device(number: int | None = None) -> Device:
    """Return the process's `Device` of a number, by default of the device in use (`device_in_use`).

    Raises:
        DeviceError: it does not exist.
    """
    return _opened(device_in_use() if number is None else number)


@functools.lru_cache(maxsize=64)
def _opened(number: int) -> Device:
    return Device(number)
