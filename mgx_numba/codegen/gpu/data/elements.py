"""Frame of kernels in which each thread computes one vector of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, SharedLength, ceil_div, is_symbolic
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ..architecture import WARP
from ..cluster.flat_index import Axes
from ..kernel import gpu_grid, gpu_kernel
from ..printer import dtype_name

THREADS = 256
"""Threads per block: eight blocks fill a multiprocessor of 2048 threads. No figures kept."""

BUSY_THREADS = 1 << 16
"""Threads that keep a device busy. Up to this number threads share an element's comparisons: the order of 512 int64
elements takes 20 us on an H200 with a thread each."""


def threads_of_element(elements: SharedLength, comparisons: SharedLength) -> int:
    """Return the number of threads of a warp that share the comparisons of one element; 1 for open lengths."""
    if is_symbolic(elements) or is_symbolic(comparisons):
        return 1
    group = 1
    while group < WARP and 2 * group * elements <= BUSY_THREADS and 4 * group <= comparisons:
        group *= 2
    return group


class ElementText:
    """Kernel text over the vectors of an iteration space.

    Attributes:
        active: condition that the thread has a vector; excess threads compute the last vector without storing it.
        buffer: receives the statements.
        lanes: elements per vector along the last axis.
        places: names of the indices along the axes; the last one counts vectors.
    """

    active = f"block_index(0) * {THREADS} + thread_index(0) < items"

    def __init__(
        self,
        tensors: Sequence[tuple[str, Tensor]],
        lens: Sequence[Length],
        strides: Sequence[Sequence[Length]],
        lanes: int,
    ) -> None:
        """Declare the arguments.

        Args:
            tensors: operands by name, the result last.
            lens: axes of the space; the last is a multiple of ``lanes``.
            strides: of some tensors along these axes, the result's last.
        """
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
        """Emit the thread's position; declare all remaining arguments first."""
        self.buffer.line(*self.arguments.bind())
        self.buffer.line(f"item = imin(block_index(0) * {THREADS} + thread_index(0), items - 1)")
        self.places = self._axes.split(self.buffer, "item")

    def place(self, number: int) -> str:
        """Emit the element offset of the vector by stride set ``number``; return its name."""
        text = self._axes.offset(number, self.places)
        return self.buffer.emit(text) if " " in text else text

    def faults(self) -> None:
        """Declare the arguments of ``note_fault``, unless done before."""
        if "fault" not in self.arguments.names:
            self.arguments.fault("pointer_int64")

    def store(self, value: str) -> None:
        """Emit the store of an active thread's vector."""
        store = "store_aligned" if self.lanes > 1 else "store"
        place = self.place(self._last)
        with self.buffer.block(f"if {self.active}:"):
            self.buffer.line(f"{store}(p_{self._result}, {place}, {value})")

    def launch(self, name: str, origin: str, moved: Length, flops: Length = 0, checks: tuple[str, ...] = ()) -> Launch:
        """Return the launch of the finished text; ``moved`` is its memory traffic in bytes."""
        kernel = gpu_kernel(name, self.buffer.lines, THREADS, len(self.arguments.values), origin)
        grid = gpu_grid(ceil_div(self._items, THREADS), THREADS)
        return Launch(kernel, self.arguments.values, grid, flops, moved, (), checks)
