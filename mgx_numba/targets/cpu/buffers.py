"""Buffers and views of the lowered form, and memory colouring: which buffers share the arena's bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ...codegen.cluster.text import Tensor
from ...graph.shape import Shape
from ...graph.types import Type
from ...runtime.plan import Pointer, Region, TensorView

__all__ = ["Buffer", "View", "color"]

ALIGNMENT = 64


class Buffer:
    """Memory of one region. Arena buffers live from the first to the last step that touches them."""

    __slots__ = ("bytes", "first", "index", "last", "offset", "region")

    def __init__(self, region: Region, index: int = 0, bytes: int = 0) -> None:
        self.region = region
        self.index = index
        self.bytes = bytes
        self.offset = 0
        self.first = -1
        self.last = -1

    def touch(self, step: int) -> None:
        """Record a use by a step."""
        self.first = step if self.first < 0 else min(self.first, step)
        self.last = max(self.last, step)

    def overlaps(self, other: Buffer) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, eq=False)
class View:
    """A tensor in a buffer: ``offset`` elements in, with its actual strides (which may differ from the IR's)."""

    buffer: Buffer
    shape: Shape
    offset: int = 0

    @property
    def lens(self) -> tuple[int, ...]:
        """Lengths."""
        return self.shape.lens

    @property
    def strides(self) -> tuple[int, ...]:
        """Element strides."""
        return self.shape.strides

    @property
    def type(self) -> Type:
        """Element type."""
        return self.shape.type

    @property
    def byte_offset(self) -> int:
        """Bytes from the buffer's start to the first element."""
        return self.offset * self.shape.type.size

    @property
    def tensor(self) -> Tensor:
        """As an operand of a cluster."""
        return Tensor(self.type, self.lens, self.strides)

    def pointer(self, extra: int = 0) -> Pointer:
        """Where the first element will be, ``extra`` bytes further."""
        return Pointer(self.buffer.region, self.buffer.index, self.buffer.offset + self.byte_offset + extra)

    def plan_view(self) -> TensorView:
        """As the runtime sees it."""
        return TensorView(self.pointer(), self.type.numpy.name, self.lens, self.strides)

    def with_shape(self, shape: Shape, offset: int = 0) -> View:
        """Another window of the same buffer, ``offset`` elements after this one's start."""
        return View(self.buffer, shape, self.offset + offset)

    def aliased(self, function: Callable[[np.ndarray], np.ndarray]) -> View | None:
        """The view that a NumPy function makes of this tensor, or ``None`` if it would copy.

        The function is run on a stand-in array with the same strides whose elements are never read.
        """
        itemsize = self.type.size
        element = np.empty(1, f"u{itemsize}")  # NumPy's as_strided does not know every element type
        stand_in = np.lib.stride_tricks.as_strided(
            element, self.lens, [s * itemsize for s in self.strides], writeable=False
        )
        try:
            result = function(stand_in)
        except ValueError:
            return None
        distance = result.__array_interface__["data"][0] - stand_in.__array_interface__["data"][0]
        if not result.size:
            return self.with_shape(Shape(self.type, result.shape))
        return self.with_shape(
            Shape(self.type, result.shape, [s // itemsize for s in result.strides]), distance // itemsize
        )


def color(buffers: Iterable[Buffer], reuse: bool = True) -> int:
    """Place arena buffers so that those alive at the same step do not overlap; returns the arena's bytes.

    Greedy by size: the largest buffers first, each at the lowest gap that its already placed neighbours leave.
    Without ``reuse`` every buffer has bytes of its own.
    """
    placed: list[Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.first)):
        size = -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        offset = 0 if reuse else total
        if reuse:
            for other in sorted((b for b in placed if b.overlaps(buffer)), key=lambda b: b.offset):
                if offset + size <= other.offset:
                    break
                offset = max(offset, other.offset + -(-other.bytes // ALIGNMENT) * ALIGNMENT)
        buffer.offset = offset
        placed.append(buffer)
        total = max(total, offset + size)
    return total
