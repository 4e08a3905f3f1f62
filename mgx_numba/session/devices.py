"""ONNX Runtime's descriptions of devices and their memory: `OrtDevice`, `OrtMemoryInfo`, `OrtArenaCfg`."""

from __future__ import annotations

from collections.abc import Mapping

from ..dataclass import dataclass
from ..errors import OptionError, UnsupportedError
from .enums import OrtAllocatorType, OrtDeviceMemoryType, OrtDeviceVendorId, OrtMemoryInfoDeviceType, OrtMemType

__all__ = [
    "OrtArenaCfg",
    "OrtDevice",
    "OrtMemoryInfo",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
]

_KINDS = {
    "cpu": (OrtMemoryInfoDeviceType.CPU, OrtDeviceVendorId.NONE),
    "gpu": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NONE),
    "cuda": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NVIDIA),
    "dml": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.MICROSOFT),
    "webgpu": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NONE),
    "npu": (OrtMemoryInfoDeviceType.NPU, OrtDeviceVendorId.NONE),
    "cann": (OrtMemoryInfoDeviceType.NPU, OrtDeviceVendorId.HUAWEI),
}
"""Kind and vendor for each of ONNX Runtime's device names."""


class OrtDevice:
    """Kind, vendor and number of a device; use `make` to construct an instance."""

    def __init__(self, device_type: int, device_id: int, vendor_id: int) -> None:
        self._type, self._id, self._vendor = device_type, device_id, vendor_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device with a name (``cpu``, ``cuda``, ``gpu``, ...), a number and, if not negative, a vendor.

        Raises:
            UnsupportedError: ONNX Runtime has no device of this name.
        """
        if ort_device_name not in _KINDS:
            raise UnsupportedError(f"device {ort_device_name!r}, expected one of {', '.join(_KINDS)}")
        kind, vendor = _KINDS[ort_device_name]
        return OrtDevice(int(kind), int(device_id), int(vendor if vendor_id < 0 else vendor_id))

    def device_id(self) -> int:
        """Return the device's number."""
        return self._id

    def device_type(self) -> int:
        """Return the number of the device's kind: 0 for a CPU, 1 for a GPU, 3 for an NPU."""
        return self._type

    def device_vendor_id(self) -> int:
        """Return the PCI number of the device's vendor; 0 if no vendor was given."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Return 0: the device's own memory."""
        return int(OrtDeviceMemoryType.DEFAULT)

    def __repr__(self) -> str:
        return f"OrtDevice(type={self._type}, id={self._id}, vendor={self._vendor:#x})"


@dataclass(frozen=True)
class OrtMemoryInfo:
    """Name, device and kind of the memory that holds an input or a result."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """Return the description of memory on a vendor's device; memory kind and alignment are ignored."""
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


class OrtArenaCfg:
    """Growth options of an arena; -1 is ONNX Runtime's default. They have no effect: a plan fixes its arena's size.

    Args:
        max_mem: largest size in bytes, or a mapping of attributes by name.
        arena_extend_strategy: 0 grows to the next power of two, 1 by the requested size.
        initial_chunk_size_bytes: initial size.
        max_dead_bytes_per_chunk: largest number of unused bytes.

    Raises:
        OptionError: a mapping has an unknown key.
    """

    max_mem: int = -1
    arena_extend_strategy: int = -1
    initial_chunk_size_bytes: int = -1
    max_dead_bytes_per_chunk: int = -1
    initial_growth_chunk_size_bytes: int = -1
    max_power_of_two_extend_bytes: int = -1

    def __init__(
        self,
        max_mem: int | Mapping[str, int] = -1,
        arena_extend_strategy: int = -1,
        initial_chunk_size_bytes: int = -1,
        max_dead_bytes_per_chunk: int = -1,
    ) -> None:
        self.arena_extend_strategy = arena_extend_strategy
        self.initial_chunk_size_bytes = initial_chunk_size_bytes
        self.max_dead_bytes_per_chunk = max_dead_bytes_per_chunk
        known = OrtArenaCfg.__annotations__
        for name, value in (max_mem if isinstance(max_mem, Mapping) else {"max_mem": max_mem}).items():
            if name not in known:
                raise OptionError(f"OrtArenaCfg has no {name!r}; it has: {', '.join(known)}")
            setattr(self, name, int(value))


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Do nothing: sessions share no allocator, and a plan fixes the size of a session's arena."""


def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Do nothing, as `create_and_register_allocator`."""
