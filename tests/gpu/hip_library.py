"""A stand-in for libamdhip64: memory of the host, code objects as a loader reads them, kernels by the interpreter.

Arguments are those that ctypes would give to the library, and are taken apart as it would.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid

from ..interpreter.engine import InterpreterEngine
from ..interpreter.run import interpret
from .code_objects import read_code_object

OUT_OF_MEMORY, INVALID_DEVICE, NOT_FOUND = 2, 101, 500


class HipLibrary:
    """A device of one architecture; ``sources`` has the loadable kernels by symbol."""

    def __init__(self, architecture: str = "gfx942", version: int = 60200000, bytes: int = 1 << 30) -> None:
        self.architecture, self.version, self.free = architecture, version, bytes
        self.sources: dict[str, KernelSource] = {}
        self.device = InterpreterEngine(0)
        self.launches: list[str] = []
        self._modules: list[Any] = []
        self._functions: list[KernelSource] = []
        self._handles = 0
        self._sizes: dict[int, int] = {}
        self._pinned: list[Any] = []
        names = {OUT_OF_MEMORY: b"hipErrorOutOfMemory", INVALID_DEVICE: b"hipErrorInvalidDevice"}
        self.hipGetErrorName = lambda status: names.get(status)  # one whose type of result can be set

    def hipRuntimeGetVersion(self, place: Any) -> int:
        place._obj.value = self.version
        return 0

    def hipGetDeviceCount(self, place: Any) -> int:
        place._obj.value = 1
        return 0

    def hipGetDevice(self, place: Any) -> int:
        place._obj.value = 0
        return 0

    def hipSetDevice(self, number: int) -> int:
        return 0 if number == 0 else INVALID_DEVICE

    def hipDeviceGetName(self, place: Any, size: int, number: int) -> int:
        place.value = b"Stand-in"
        return 0

    def hipGetDevicePropertiesR0600(self, place: Any, number: int) -> int:
        place[1160 : 1160 + 32] = f"{self.architecture}:sramecc+:xnack-".encode().ljust(32, b"\0")
        return 0

    def hipMemGetInfo(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self.free, 1 << 30
        return 0

    def hipMalloc(self, place: Any, size: Any) -> int:
        if size.value > self.free:
            return OUT_OF_MEMORY
        address = self.device.allocate(size.value, "memory")
        self.free -= size.value
        self._sizes[address] = size.value
        place._obj.value = address
        return 0

    def hipFree(self, place: Any) -> int:
        self.free += self._sizes.pop(place.value)
        self.device.free(place.value)
        return 0

    def hipHostMalloc(self, place: Any, size: Any, flags: Any) -> int:
        self._pinned.append(ctypes.create_string_buffer(size.value))
        place._obj.value = ctypes.addressof(self._pinned[-1])
        return 0

    def hipHostFree(self, place: Any) -> int:
        return 0

    def hipPointerGetAttributes(self, place: Any, address: Any) -> int:
        if not self.device.holds(address.value):
            return 1
        place._obj[0], place._obj[1] = (2 if self.version >= 60000000 else 1), 0
        return 0

    def hipModuleLoadData(self, place: Any, code: bytes) -> int:
        self._modules.append(read_code_object(code))
        place._obj.value = len(self._modules)
        return 0

    def hipModuleGetFunction(self, place: Any, module: Any, name: bytes) -> int:
        if not self._modules[module.value - 1].code(name.decode()):
            return NOT_FOUND
        self._functions.append(self.sources[name.decode()])
        place._obj.value = len(self._functions)
        return 0

    def hipModuleLaunchKernel(self, function: Any, *rest: Any) -> int:
        *numbers, shared, _, parameters, extra = rest
        assert extra is None
        source = self._functions[function.value - 1]
        slots = int(re.search(r"^SLOTS = (\d+)$", source.text, re.M)[1])
        words = list((ctypes.c_int64 * slots).from_address(parameters[0]))
        x, y, z, *threads = (number.value for number in numbers)
        interpret(source, words, Grid((x, y, z), tuple(threads), shared.value), self.device.memory)
        self.launches.append(source.name)
        return 0

    def hipMemcpyHtoDAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        allocation, start = self.device.memory.find(target.value)
        allocation.data[start : start + size.value] = bytearray(ctypes.string_at(source.value, size.value))
        return 0

    def hipMemcpyDtoHAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        allocation, start = self.device.memory.find(source.value)
        ctypes.memmove(target.value, allocation.data[start : start + size.value].tobytes(), size.value)
        return 0

    def hipMemcpyDtoDAsync(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        allocation, start = self.device.memory.find(source.value)
        data = allocation.data[start : start + size.value].copy()
        allocation, start = self.device.memory.find(target.value)
        allocation.data[start : start + size.value] = data
        return 0

    def _handle(self, place: Any, *rest: Any) -> int:
        self._handles += 1
        place._obj.value = self._handles
        return 0

    hipStreamCreateWithFlags = hipEventCreateWithFlags = _handle

    def _nothing(self, *arguments: Any) -> int:
        return 0

    hipInit = hipStreamDestroy = hipStreamSynchronize = hipStreamWaitEvent = hipEventRecord = hipEventQuery = _nothing
    hipEventDestroy = hipEventSynchronize = hipDeviceSynchronize = _nothing

    def hipEventElapsedTime(self, place: Any, start: Any, end: Any) -> int:
        place._obj.value = 0.5
        return 0
