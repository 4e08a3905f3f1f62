"""`OrtEpDevice`: the devices of this process, each with its execution provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from .._version import __version__
from ..dataclass import dataclass
from .devices import OrtMemoryInfo
from .enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemType,
)
from .providers import CPU, get_available_providers

__all__ = ["OrtEpDevice", "OrtHardwareDevice", "get_ep_devices"]


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A hardware device; its vendor and metadata are unknown."""

    type: OrtHardwareDeviceType
    device_id: int = 0
    vendor: str = ""
    vendor_id: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrtEpDevice:
    """A device with the execution provider that runs models on it."""

    ep_name: str
    device: OrtHardwareDevice
    ep_vendor: str = "mgx_numba"
    ep_metadata: Mapping[str, str] = field(default_factory=lambda: {"version": __version__})
    ep_options: Mapping[str, str] = field(default_factory=dict)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """Return the device's own memory; None for host memory that the device can access."""
        if memory_type != OrtDeviceMemoryType.DEFAULT:
            return None
        name = "Cpu" if self.device.type == OrtHardwareDeviceType.CPU else "Cuda"
        return OrtMemoryInfo(name, OrtAllocatorType.ORT_ARENA_ALLOCATOR, self.device.device_id, OrtMemType.DEFAULT)


Delegate = Callable[[Sequence[OrtEpDevice], Mapping[str, str], Mapping[str, str], int], Sequence[OrtEpDevice]]
"""A user's function that selects devices. Its arguments are the devices, metadata of the model and of this package
(both empty here), and the largest number of devices to select."""

_MOST_CHOSEN = 8
"""Largest number of devices that a delegate may select, as in ONNX Runtime; a session runs on the first."""

_FASTEST = (OrtExecutionProviderDevicePolicy.PREFER_GPU, OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE)


def get_ep_devices() -> list[OrtEpDevice]:
    """Return one device for each available provider."""
    cpu, gpu = OrtHardwareDevice(OrtHardwareDeviceType.CPU), OrtHardwareDevice(OrtHardwareDeviceType.GPU)
    return [OrtEpDevice(name, cpu if name == CPU else gpu) for name in get_available_providers()]


def providers_by_policy(policy: OrtExecutionProviderDevicePolicy | Delegate) -> list[str]:
    """Return the names of the providers that a policy or a user's function selects, in order of preference."""
    if callable(policy):
        return list(dict.fromkeys(device.ep_name for device in policy(get_ep_devices(), {}, {}, _MOST_CHOSEN)))
    return get_available_providers() if policy in _FASTEST else [CPU]
