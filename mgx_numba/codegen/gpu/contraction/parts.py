"""Sums whose parts several blocks have added: the launch that adds the parts, and does what follows."""

from __future__ import annotations

from ....core.dim import ceil_div
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ..kernel import gpu_kernel, plane_grid
from .placed import PlacedRequest
from .text import ContractionText

__all__ = ["add_parts"]

FINISH_THREADS = 256
"""Threads of a block that adds parts. No figures kept."""
LANES = 4
"""Sums of a thread: 16 bytes."""


def add_parts(placed: PlacedRequest, first: Launch, splits: int) -> Solution:
    """A launch that writes ``splits`` parts of each sum to ``scratch``, in the sums' dtype and the order part, plane,
    row and column, and the launch that adds them, always in one order.

    Raises:
        UnsupportedError: an operation around the contraction has no kernel.
    """
    text, epilogue = _AddingText(placed, splits), placed.request.epilogue
    operands = text.operands
    scratch = ITEMSIZE[text.accumulator] * splits * operands.planes * operands.rows * operands.columns
    lines, values = text.lines(), text.arguments.values
    name = f"add_parts{'_' * bool(epilogue.name)}{epilogue.name}_kernel"
    kernel = gpu_kernel(name, lines, FINISH_THREADS, len(values))
    second = Launch(kernel, values, plane_grid(text.blocks, operands.planes, FINISH_THREADS), 0, scratch)
    return Solution((first, second), scratch)


class _AddingText(ContractionText):
    """The text that adds the parts of sums, in order, and does what follows the contraction."""

    def __init__(self, placed: PlacedRequest, splits: int) -> None:
        super().__init__(placed)
        self.width = placed.lanes(self.operands.columns, LANES)
        self.arguments.pointer("p_scratch", "scratch", self.accumulator)
        self.arguments.integer("planes", self.operands.planes)
        self.arguments.integer("splits", splits)
        self.arguments.integer("across", self.operands.columns // self.width)
        self.blocks = ceil_div(self.operands.rows * self.operands.columns, self.width * FINISH_THREADS)

    def lines(self) -> list[str]:
        """All statements of the kernel."""
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
