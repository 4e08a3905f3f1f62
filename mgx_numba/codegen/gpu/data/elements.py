"""The frame of kernels in which each thread makes one vector of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, ceil_div
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ..cluster.indexing import Axes
from ..kernel import gpu_grid, gpu_kernel
from ..printer import dtype_name

__all__ = ["ElementText"]

THREADS = 256
"""Threads of a block: eight blocks fill a multiprocessor of 2048. No figures kept."""


class ElementText:
    """The text of a kernel over the vectors of a space.

    Attributes:
        active: whether the thread has a vector; those beyond the last one make the last one's too.
        buffer: where statements go.
        lanes: of the vectors, along the last dimension.
        places: names of the indices along the dimensions; the last counts vectors.
    """

    active = f"block_index(0) * {THREADS} + thread_index(0) < items"

    def __init__(
        self,
        tensors: Sequence[tuple[str, Tensor]],
        lens: Sequence[Length],
        strides: Sequence[Sequence[Length]],
        lanes: int,
    ) -> None:
        """``tensors`` are the operands by name, the result last; ``strides`` are those of some tensors along the
        dimensions ``lens``, of which the last is a multiple of ``lanes``, the result's last."""
        self.lanes = lanes
        self.buffer = CodeBuffer()
        self.arguments = Arguments()
        self._result, self._last = tensors[-1][0], len(strides) - 1
        for name, tensor in tensors:
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        lens = (*lens[:-1], lens[-1] // lanes)
        self._items = prod(lens)
        self.arguments.integer("items", self._items)
        self._axes = Axes(self.arguments, "", lens, strides, lanes)
        self.places: list[str] = []

    def begin(self) -> None:
        """Emit where the thread's vector is; all other arguments have been asked for."""
        self.buffer.line(*self.arguments.bind())
        self.buffer.line(f"item = imin(block_index(0) * {THREADS} + thread_index(0), items - 1)")
        self.places = self._axes.split(self.buffer, "item")

    def place(self, number: int) -> str:
        """Name of the element offset at the vector by one of the strides."""
        text = self._axes.offset(number, self.places)
        return self.buffer.emit(text) if " " in text else text

    def faults(self) -> None:
        """Ask for the arguments of ``note_fault``."""
        self.arguments.fault("pointer_int64")

    def store(self, value: str) -> None:
        """Store the vector of an active thread."""
        store = "store_aligned" if self.lanes > 1 else "store"
        place = self.place(self._last)
        with self.buffer.block(f"if {self.active}:"):
            self.buffer.line(f"{store}(p_{self._result}, {place}, {value})")

    def launch(self, name: str, origin: str, moved: Length, flops: Length = 0, checks: tuple[str, ...] = ()) -> Launch:
        """The launch of the finished text."""
        kernel = gpu_kernel(name, self.buffer.lines, THREADS, len(self.arguments.values), origin)
        grid = gpu_grid(ceil_div(self._items, THREADS), THREADS)
        return Launch(kernel, self.arguments.values, grid, flops, moved, (), checks)
