"""Products with constant weights of few bits in blocks (ONNX Runtime's MatMulNBits)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic


@register
@dataclass(frozen=True)
class MatMulNBits(Operator):
    """Rows [..., m, k] times the matrix ``(code - zero point) * scale`` of k rows and n columns.

    Inputs are the rows, bytes of codes [n, blocks, block_size * bits / 8] (of 4 bits the first in the low half), scales
    [n, blocks] in float32, and perhaps zero points [n, blocks] in uint8, without which they are ``2**(bits - 1)``. The
    result has the rows' type. ``accuracy_level`` is that of `Dot`.
    """

    name: ClassVar[str] = "matmul_nbits"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("accuracy_level",)
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 3, 4)
        rows, codes, scales, *points = inputs
        if any_dynamic(inputs[1:]) or codes.ndim != 3 or codes.type is not Type.uint8_type:
            raise self.fail(f"codes must be bytes [n, blocks, bytes of a block], got {codes}")
        if self.bits not in (4, 8) or self.block_size < 1 or codes.lens[2] * 8 != self.block_size * self.bits:
            raise self.fail(f"blocks of {self.block_size} with {self.bits} bits do not fit {codes.lens[2]} bytes")
        wanted = [(scales, Type.float_type), *((p, Type.uint8_type) for p in points)]
        for given, type in wanted:
            if given.type is not type or given.lens != codes.lens[:2]:
                raise self.fail(f"expected {type.name} {list(codes.lens[:2])} for each block, got {given}")
        if rows.ndim < 2 or not rows.type.is_floating:
            raise self.fail(f"rows must be floating point with a rank of at least 2, got {rows}")
        if any_dynamic(inputs[:1]):
            depth = rows.dims[-1]
            if depth.min != depth.max:
                raise self.fail(f"the inner length of {rows} must be known")
            self._check_depth(depth.min, codes.lens[1])
            return Shape.dynamic(rows.type, [*rows.dims[:-1], Shape(rows.type, (codes.lens[0],)).dims[0]])
        self._check_depth(rows.lens[-1], codes.lens[1])
        return Shape(rows.type, (*rows.lens[:-1], codes.lens[0]))

    def _check_depth(self, depth: int, blocks: int) -> None:
        if -(-depth // self.block_size) != blocks:
            raise self.fail(f"an inner length of {depth} does not fit {blocks} blocks of {self.block_size}")

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> Any:
        rows, codes, scales, *points = args
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], self.block_size)
        less = points[0][..., None] if points else np.array(1 << (self.bits - 1))
        matrix = (codes.astype(np.float64) - less) * scales[..., None]
        n, blocks = codes.shape[:2]
        depth = rows.shape[-1]
        with np.errstate(all="ignore"):
            product = rows.astype(np.float64) @ matrix.reshape(n, blocks * self.block_size)[:, :depth].T
            return product.astype(output.type.numpy)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[0].max_lens[-1]
