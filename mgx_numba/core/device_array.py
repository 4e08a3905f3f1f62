"""Tensors in device memory, independent of the device's programming interface."""

from __future__ import annotations

from typing import Any

from .shape import Shape, row_major_strides

CUDA = 2  # kDLCUDA
CPU_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost


class DeviceArray:
    """A tensor in a device's memory.

    Attributes:
        shape: type, lengths and strides.
        address: address of its first element.
        device: the device's number.
        owner: the object that keeps the memory alive: a block of this package, an exporter, or None if the caller does.
        stream: the stream (a driver's handle) in which its elements are written; None if they are complete.
    """

    __slots__ = ("address", "device", "owner", "shape", "stream")

    def __init__(self, shape: Shape, address: int, device: int, owner: Any = None, stream: int | None = None) -> None:
        self.shape = shape
        self.address = address
        self.device = device
        self.owner = owner
        self.stream = stream


def lens_of(value: Any) -> tuple[int, ...]:
    """Return the lengths of an input on the host or on a device."""
    return value.shape.array_lens if isinstance(value, DeviceArray) else value.shape


def is_in_a_row(shape: Shape) -> bool:
    """Return whether elements are contiguous in row-major order; strides of axes of length 1 are ignored."""
    if 0 in shape.lens:
        return True
    wanted = row_major_strides(shape.lens)
    return all(n == 1 or a == b for n, a, b in zip(shape.lens, shape.strides, wanted))


def device_of(value: Any) -> tuple[int, int] | None:
    """Return DLPack's device kind and the device number of a tensor of any library.

    Returns:
        The number is -1 if the tensor does not state it. None for host memory and for values that are no tensors.
    """
    if hasattr(type(value), "__dlpack_device__"):
        kind, number = value.__dlpack_device__()
        return None if int(kind) in CPU_DEVICES else (int(kind), int(number))
    return (CUDA, -1) if hasattr(value, "__cuda_array_interface__") else None
