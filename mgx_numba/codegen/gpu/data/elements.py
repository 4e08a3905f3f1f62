"""The frame of kernels in which each thread makes one vector of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

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
        buffer: where statements go.
        lanes: of the vectors, along the last dimension.
        places: names of the indices along the dimensions; the last counts vectors.
    """

    def __init__(
        self, tensors: Sequence[tuple[str, Tensor]], lens: Sequence[int], strides: Sequence[Sequence[int]], lanes: int
    ) -> None:
        """``tensors`` are the operands by name, the result last; ``strides`` are theirs along the dimensions ``lens``,
        of which the last is a multiple of ``lanes``."""
        self.lanes = lanes
        self.buffer = CodeBuffer()
        self.arguments = Arguments()
        self._names = [name for name, _ in tensors]
        for name, tensor in tensors:
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        lens = (*lens[:-1], lens[-1] // lanes)
        self._items = prod(lens)
        self.arguments.integer("items", self._items)
        self._axes = Axes(self.arguments, "", lens, strides, lanes)
        self._checked = False
        self.places: list[str] = []

    def begin(self) -> None:
        """Emit where the thread's vector is; all other arguments have been asked for."""
        for line in self.arguments.bind():
            self.buffer.line(line)
        self.buffer.line(f"item = imin(block_index(0) * {THREADS} + thread_index(0), items - 1)")
        self.places = self._axes.split(self.buffer, "item")

    def place(self, operand: int) -> str:
        """Name of an operand's element offset at the vector."""
        text = self._axes.offset(operand, self.places)
        return self.buffer.emit(text) if " " in text else text

    def faults(self) -> None:
        """Ask for the arguments of `fault`."""
        self.arguments.fault("pointer_int64")

    def fault(self, condition: str, check: int, index: str) -> None:
        """Note an index that does not fit."""
        with self.buffer.block(f"if {condition}:"):
            self.buffer.line(f"note_fault(fault, step_number, {check}, {index})")

    def store(self, value: str) -> None:
        """Store the vector; threads beyond the last one have made the last one's too, and store nothing."""
        name = self._names[-1]
        store = "store_aligned" if self.lanes > 1 else "store"
        place = self.place(len(self._names) - 1)
        with self.buffer.block(f"if block_index(0) * {THREADS} + thread_index(0) < items:"):
            self.buffer.line(f"{store}(p_{name}, {place}, {value})")

    def launch(self, name: str, origin: str, moved: int, flops: int = 0, checks: tuple[str, ...] = ()) -> Launch:
        """The launch of the finished text."""
        kernel = gpu_kernel(name, self.buffer.lines, THREADS, len(self.arguments.values), origin)
        grid = gpu_grid(-(-self._items // THREADS), THREADS)
        return Launch(kernel, self.arguments.values, grid, flops, moved, (), checks)
