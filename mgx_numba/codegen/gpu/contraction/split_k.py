"""Second launch of a split-K contraction: add the partial sums and compute the epilogue."""

from __future__ import annotations

from ....core.dim import ceil_div
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ..kernel import gpu_kernel, plane_grid
from .contraction_text import ContractionText
from .gpu_contraction import GpuContraction

FINISH_THREADS = 256
"""Threads per block of the second launch. No figures kept."""
LANES = 4
"""Elements per thread: 16 bytes."""


def add_split_k(contraction: GpuContraction, first: Launch, splits: int) -> Solution:
    """Return both launches of a split-K contraction.

    Args:
        first: launch that writes partial sums to ``scratch``, ``[splits, planes, rows, columns]`` in the accumulator's
            dtype.
        splits: number of partial sums; they are added in order.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text, epilogue = _AddingText(contraction, splits), contraction.request.epilogue
    operands = text.operands
    scratch = ITEMSIZE[text.accumulator] * splits * operands.planes * operands.rows * operands.columns
    lines, values = text.lines(), text.arguments.values
    name = f"add_parts{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    kernel = gpu_kernel(name, lines, FINISH_THREADS, len(values))
    second = Launch(kernel, values, plane_grid(text.blocks, operands.planes, FINISH_THREADS), 0, scratch)
    return Solution((first, second), scratch)


class _AddingText(ContractionText):
    """Kernel text of the launch that adds partial sums in order and computes the epilogue."""

    def __init__(self, contraction: GpuContraction, splits: int) -> None:
        super().__init__(contraction)
        self.width = contraction.lanes(self.operands.columns, LANES)
        self.arguments.pointer("p_scratch", "scratch", self.accumulator)
        self.arguments.integer("planes", self.operands.planes)
        self.arguments.integer("splits", splits)
        self.arguments.integer("across", self.operands.columns // self.width)
        self.blocks = ceil_div(self.operands.rows * self.operands.columns, self.width * FINISH_THREADS)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer = CodeBuffer()
        block = self._begin_plane(buffer, self.blocks)
        buffer.line(
            f"item = {block} * {FINISH_THREADS} + thread",
            "row = idiv(item, across)",
            f"column = (item - row * across) * {self.width}",
        )
        load = "load_aligned" if self.width > 1 else "load"
        with buffer.block("if row < rows:"):
            buffer.line(f"sums = const_{self.accumulator}(0, {self.width})")
            with buffer.block("for k in range(splits):"):
                place = "((k * planes + plane) * rows + row) * columns + column"
                buffer.line(f"sums = add(sums, {load}(p_scratch, {place}, {self.width}))")
            self._store(buffer, ["sums"], "row", "column", self.width, True)
        return buffer.lines
