"""Products with constant weights of few bits in blocks: ONNX Runtime's MatMulNBits, and GGUF's layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .block_layouts import layout_named
from .dims import any_dynamic

BLOCK_SIZES = (128, 64, 32, 16)
"""Block sizes that kernels read. Longer blocks are split into blocks of the first size, whose scales take 1/64 of the
codes' memory; shorter ones would take more memory than they save."""
ROW_TYPES = frozenset({Type.float_type, Type.half_type, Type.bf16_type})
"""Types of rows that kernels multiply by block-quantised weights."""


@register
@dataclass(frozen=True)
class MatMulNBits(Operator):
    """Rows [..., m, k] times the matrix ``(code - zero point) * scale`` of k rows and n columns.

    Inputs are the rows, bytes of codes [n, blocks, block_size * bits / 8] (of 4 bits the first in the low half), scales
    [n, blocks] in float32, and perhaps zero points [n, blocks] in uint8, without which they are ``2**(bits - 1)``. The
    result has the rows' type. ``accuracy_level`` is that of `Dot`.

    With a ``layout`` of `block_layouts` the inputs are the rows and matrices of bytes [n, bytes of a row] as a GGUF
    file has them, whose columns follow one another. ``bits`` and ``block_size`` are then the layout's.
    """

    name: ClassVar[str] = "matmul_nbits"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("accuracy_level", "layout")
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 0
    layout: str = ""

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        if self.layout:
            return self._shape_of_layout(inputs)
        rows, codes, scales, *points = self.expect_inputs(inputs, 3, 4)
        if any_dynamic(inputs[1:]) or codes.ndim != 3 or codes.type is not Type.uint8_type:
            raise self.fail(f"codes must be bytes [n, blocks, bytes of a block], got {codes}")
        if self.bits not in (4, 8) or self.block_size < 1 or codes.lens[2] * 8 != self.block_size * self.bits:
            raise self.fail(f"blocks of {self.block_size} with {self.bits} bits do not fit {codes.lens[2]} bytes")
        wanted = [(scales, Type.float_type), *((p, Type.uint8_type) for p in points)]
        for given, type in wanted:
            if given.type is not type or given.lens != codes.lens[:2]:
                raise self.fail(f"expected {type.name} {list(codes.lens[:2])} for each block, got {given}")
        depth = self._depth(rows)
        if -(-depth // self.block_size) != codes.lens[1]:
            raise self.fail(f"an inner length of {depth} does not fit {codes.lens[1]} blocks of {self.block_size}")
        return Shape.dynamic(rows.type, [*rows.dims[:-1], codes.lens[0]])

    def _depth(self, rows: Shape) -> int:
        """Return the inner length of the rows."""
        if rows.ndim < 2 or not rows.type.is_floating:
            raise self.fail(f"rows must be floating point with a rank of at least 2, got {rows}")
        depth = rows.dims[-1]
        if depth.min != depth.max:
            raise self.fail(f"the inner length of {rows} must be known")
        return depth.min

    def _shape_of_layout(self, inputs: Sequence[Shape]) -> Shape:
        """Return the result's shape for weights in a GGUF layout."""
        layout, (rows, *parts) = layout_named(self.layout), inputs
        if (self.bits, self.block_size) != (layout.bits, layout.size):
            raise self.fail(f"layout {self.layout} has {layout.bits} bits in blocks of {layout.size}")
        depth = self._depth(rows)
        if not parts:
            raise self.fail("there are no weights")
        for part in parts:
            if any_dynamic([part]) or part.type is not Type.uint8_type or part.ndim != 2:
                raise self.fail(f"weights must be bytes [n, bytes of a row], got {part}")
            if part.lens[1] != layout.row_bytes(depth):
                raise self.fail(
                    f"{depth} weights of layout {self.layout} have {layout.row_bytes(depth)} bytes, got {part}"
                )
        return Shape.dynamic(rows.type, [*rows.dims[:-1], sum(part.lens[0] for part in parts)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        if self.layout:
            return self._product(
                output, args[0], np.concatenate([*map(layout_named(self.layout).dequantize, args[1:])])
            )
        rows, codes, scales, *points = args
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], self.block_size)
        less = points[0][..., None] if points else np.array(1 << (self.bits - 1))
        matrix = (codes.astype(np.float64) - less) * scales[..., None]
        n, blocks = codes.shape[:2]
        return self._product(output, rows, matrix.reshape(n, blocks * self.block_size)[:, : rows.shape[-1]])

    def _product(self, output: Shape, rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the rows times a matrix [n, k], summed in float64."""
        with np.errstate(all="ignore"):
            return (rows.astype(np.float64) @ matrix.T.astype(np.float64)).astype(output.type.numpy)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[0].max_lens[-1]
