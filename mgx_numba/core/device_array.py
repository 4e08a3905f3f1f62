"""Tensors in the memory of a device: what they are and where they lie, without a word of the device's interface."""

from __future__ import annotations

from typing import Any

from .shape import Shape, row_major_strides

__all__ = ["DeviceArray", "is_in_a_row"]


class DeviceArray:
    """A tensor in a device's memory.

    Attributes:
        shape: type, lengths and strides.
        address: of its first element.
        device: the device's number.
        owner: what keeps the memory: a block of this package's, an exporter, or None where the caller does.
        stream: the stream (a driver's handle) whose order its elements are written in; None if they are there.
    """

    __slots__ = ("address", "device", "owner", "shape", "stream")

    def __init__(self, shape: Shape, address: int, device: int, owner: Any = None, stream: int | None = None) -> None:
        self.shape = shape
        self.address = address
        self.device = device
        self.owner = owner
        self.stream = stream


def is_in_a_row(shape: Shape) -> bool:
    """Whether elements lie one after the other in row-major order; strides of axes of one element say nothing."""
    if 0 in shape.lens:
        return True
    wanted = row_major_strides(shape.lens)
    return all(n == 1 or a == b for n, a, b in zip(shape.lens, shape.strides, wanted))
