"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, meet_dim

FP8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type})
INT8 = frozenset({Type.int8_type, Type.uint8_type})
NARROW_INTEGERS = INT8 | {Type.int16_type}
"""Types of the right operand of an integer product; int16 holds any difference of two 8-bit integers."""


def product_type(dtype: np.dtype, output: Type) -> np.dtype:
    """Return the accumulator type of the reference for products of ``dtype``.

    Floats use float64, so that the reference is accurate whatever the order of summation. 8-bit integers (and 16-bit
    right operands) use it too: sums of up to 2**38 products are exact. Other integers use int64 (uint64), which wraps
    as in C++.
    """
    kind = from_numpy(dtype)
    if kind.is_floating:
        return np.dtype(np.float64)
    if dtype.itemsize <= 2 and output is Type.int32_type:
        return np.dtype(np.float64)
    return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)


def quantized_output(op: Operator, inputs: Sequence[Shape]) -> Type:
    """Return the result type of a quantised contraction: int32 for 8-bit integers of any sign (the right operand may be
    int16), float for float8.

    Raises:
        ShapeError: other input types.
    """
    types = {s.type for s in inputs}
    if inputs[0].type in INT8 and inputs[1].type in NARROW_INTEGERS:
        return Type.int32_type
    if len(types) == 1 and types <= FP8:
        return Type.float_type
    listed = ", ".join(s.type.name for s in inputs)
    raise op.fail(f"inputs must be 8-bit integers or one float8 type, got {listed}")


def matmul_shape(op: Operator, inputs: Sequence[Shape], type: Type) -> Shape:
    """Return the shape of a batched matrix product with equal outer lengths."""
    a, b = op.expect_inputs(inputs, 2)
    if a.ndim != b.ndim or a.ndim < 2:
        raise op.fail(f"inputs need the same rank of at least 2, got {a} and {b}")
    if any_dynamic(inputs):
        outer = [meet_dim(op, f"lengths of axis {k}", x, y) for k, (x, y) in enumerate(zip(a.dims[:-2], b.dims[:-2]))]
        meet_dim(op, "inner lengths", a.dims[-1], b.dims[-2])
        return Shape.dynamic(type, [*outer, a.dims[-2], b.dims[-1]])
    if a.lens[:-2] != b.lens[:-2]:
        raise op.fail(f"outer lengths of {list(a.lens)} and {list(b.lens)} differ")
    if a.lens[-1] != b.lens[-2]:
        raise op.fail(f"inner lengths of {list(a.lens)} x {list(b.lens)} differ: {a.lens[-1]} and {b.lens[-2]}")
    return Shape(type, (*a.lens[:-1], b.lens[-1]))


@register
@dataclass(frozen=True)
class Dot(Operator):
    """Matrix product [..., m, k] x [..., k, n] for each index of the outer axes.

    With ``bfloat16_products`` float32 operands may be rounded to bfloat16, because they were bfloat16 in the program.
    With an ``accuracy_level`` of 4 (ONNX Runtime's MatMulNBits) rows that multiply block-quantised weights may be
    quantised to int8.
    """

    name: ClassVar[str] = "dot"
    UNLESS_SET: ClassVar[tuple[str, ...]] = ("bfloat16_products", "accuracy_level")
    bfloat16_products: bool = False
    accuracy_level: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_same_type(inputs)
        return matmul_shape(self, inputs, inputs[0].type if inputs else Type.float_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        wide = product_type(args[0].dtype, output.type)
        with np.errstate(all="ignore"):
            product = np.matmul(*(a.astype(wide, copy=False) for a in args))
            return product.astype(output.type.numpy, copy=False)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[0].max_lens[-1]


@register
@dataclass(frozen=True)
class QuantDot(Operator):
    """``dot`` of 8-bit integers into int32, or of float8 into float."""

    name: ClassVar[str] = "quant_dot"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        return matmul_shape(self, inputs, quantized_output(self, inputs))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        product = np.matmul(*(a.astype(product_type(a.dtype, output.type), copy=False) for a in args))
        return wrap_int32(product, output.type)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[0].max_lens[-1]


def wrap_int32(exact: np.ndarray, type: Type) -> np.ndarray:
    """Return a product in its result type; integers beyond int32 wrap, as accumulators do."""
    return exact.astype(np.int64).astype(np.int32) if type is Type.int32_type else exact.astype(type.numpy)
