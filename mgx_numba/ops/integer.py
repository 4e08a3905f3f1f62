"""Contractions of 8-bit integers with zero points (ONNX MatMulInteger, ConvInteger), and padding by a computed value.

A pass lowers the contractions to ``quant_dot`` and ``quant_convolution`` with terms for the zero points
(`integer_products.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .convolution import ConvolutionBase
from .dot import INT8, matmul_shape, wrap_int32
from .pad import Pad
from .window import PaddingMode


def _check_zero(op: Operator, what: str, zero: Shape, operand: Shape, axis: int) -> None:
    """Check that a zero point has its operand's type, broadcasts to the operand, and is constant along ``axis`` < 0."""
    if zero.type is not operand.type or operand.type not in INT8:
        raise op.fail(f"{what} is {operand.type.name} with a zero point of {zero.type.name}, expected one 8-bit type")
    if zero.is_dynamic or operand.is_dynamic or zero.elements == 1:
        return
    pairs = zip(reversed(zero.lens), reversed(operand.lens))
    constant = zero.ndim < -axis or zero.lens[axis] == 1
    if zero.ndim > operand.ndim or not constant or any(z not in (1, n) for z, n in pairs):
        lens, own = list(operand.lens), list(zero.lens)
        raise op.fail(f"the zero point {own} of {what} {lens} does not broadcast, or varies along axis {axis}")


def _centred(x: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return ``x - zero`` in float64, in which sums of up to 2**37 products are exact."""
    return x.astype(np.float64) - zero.reshape(() if zero.size == 1 else zero.shape)


@register
@dataclass(frozen=True)
class IntegerDot(Operator):
    """``sum_k (a[..., m, k] - a_zero) * (b[..., k, n] - b_zero)`` in int32 of 8-bit ``a`` and ``b``.

    The inputs are ``a``, ``b``, ``a_zero`` and ``b_zero``. A zero point has its operand's type. It has one
    element, or broadcasts to the operand and is constant along k. Sums that leave int32 wrap around.
    """

    name: ClassVar[str] = "integer_dot"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        a, b, a_zero, b_zero = self.expect_inputs(inputs, 4)
        result = matmul_shape(self, (a, b), Type.int32_type)
        _check_zero(self, "a", a_zero, a, -1)
        _check_zero(self, "b", b_zero, b, -2)
        return result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        a, b, a_zero, b_zero = args
        return wrap_int32(np.matmul(_centred(a, a_zero), _centred(b, b_zero)), output.type)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[0].max_lens[-1]


@register
@dataclass(frozen=True)
class IntegerConvolution(ConvolutionBase):
    """The convolution of ``x - x_zero`` with ``w - w_zero`` in int32, where padding adds 0 to a sum.

    The inputs are 8-bit ``x`` and ``w``, then ``x_zero`` of one element and ``w_zero`` of one element or
    [o, 1, 1...], each of its operand's type. Sums that leave int32 wrap around.
    """

    name: ClassVar[str] = "integer_convolution"
    padding_mode: PaddingMode = PaddingMode.default_
    group: int = 1

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        return super().normalized(inputs[:2])

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, w, x_zero, w_zero = self.expect_inputs(inputs, 4)
        result = self.window_shape((x, w), Type.int32_type, self.group)
        for what, zero, operand in (("x", x_zero, x), ("w", w_zero, w)):
            _check_zero(self, what, zero, operand, -1)
        if not x_zero.is_dynamic and x_zero.elements != 1:
            raise self.fail(f"the zero point of x has {x_zero.elements} elements, expected one")
        if w_zero.elements != 1 and w_zero.lens != (w.lens[0], *(1 for _ in w.lens[1:])):
            raise self.fail(f"the zero point {list(w_zero.lens)} of w has not one element for each of {w.lens[0]} rows")
        return result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, w, x_zero, w_zero = args
        sums = self.convolve(_centred(x, x_zero), _centred(w, w_zero), output.lens[2:], self.group)
        return wrap_int32(sums, output.type)


@register
@dataclass(frozen=True)
class PadWith(Operator):
    """The first input, padded with the second input, which has one element of the same type.

    Attributes:
        pads: numbers of elements (at least 0) to add before each axis, then after each axis.
    """

    name: ClassVar[str] = "pad_with"
    pads: tuple[int, ...] = ()

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, value = self.expect_inputs(inputs, 2)
        if value.type is not x.type or value.elements != 1:
            raise self.fail(f"the value is {value}, expected one element of {x.type.name}")
        if min(self.pads, default=0) < 0:
            raise self.fail(f"pads {list(self.pads)} cut")
        return Pad(pads=self.pads).compute_shape([x])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, value = args
        result = np.empty(output.lens, x.dtype)
        result[...] = value.reshape(())
        result[tuple(slice(first, first + n) for first, n in zip(self.pads, x.shape))] = x
        return result
