"""Weights of the next product on their way to the L2 cache while a product ends.

Between two products bound by memory, the memory waits: for the last sums of the first one, for small kernels between
them, and for the first loads of the second one, some 3 us for each of a decoder's products on an H200. The thread
blocks of the first product ask for weights of the second one together with their own last weights. Which weights these
are is known when all steps of a plan are (`targets.gpu.prefetched_weights`).
"""

from __future__ import annotations

import functools
import re

from ..arguments import Arguments
from ..kernel import KernelSource
from ..printer import CodeBuffer

LINE_BYTES = 128
"""Bytes of a cache line: CUDA C++ programming guide, "Device memory accesses"."""
WORD_BYTES = 4
_POINTER = re.compile(r"p_ahead = pointer_int32\(args, (\d+)\)")
_LINES = re.compile(r"lines_ahead = args\[(\d+)\]")


def declare_ahead(arguments: Arguments, operand: str) -> None:
    """Declare the next product's weights and the number of their cache lines to prefetch: so far no line of an operand
    of this product."""
    arguments.pointer("p_ahead", operand, "int32")
    arguments.integer("lines_ahead", 0)


def ask_ahead(buffer: CodeBuffer, block: str, blocks: str, threads: int) -> None:
    """Emit the prefetches of a thread: ``blocks`` blocks share the lines, of which this is number ``block``."""
    buffer.line(f"line_ahead = {block} * {threads} + thread")
    with buffer.block("while line_ahead < lines_ahead:"):
        buffer.line(f"prefetch_l2(p_ahead, line_ahead * {LINE_BYTES // WORD_BYTES})")
        buffer.line(f"line_ahead = line_ahead + {blocks} * {threads}")


@functools.lru_cache(maxsize=1024)
def ahead_slots(kernel: KernelSource) -> tuple[int, int] | None:
    """Return the argument slots of the address and of the number of lines; None if a kernel does not prefetch."""
    pointer, lines = _POINTER.search(kernel.text), _LINES.search(kernel.text)
    return None if pointer is None or lines is None else (int(pointer[1]), int(lines[1]))
