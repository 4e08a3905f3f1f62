"""Linear quantisation, and two 4-bit values in one byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import Type, finfo
from ..dataclass import dataclass
from .base import Operator, Pointwise, pointwise_shape, register
from .scalar import ScalarOps, V
from .scalar_functions import NEAREST


@dataclass(frozen=True)
class _Linear(Pointwise):
    """Pointwise operator on a value, a scale and perhaps a zero point, all of equal lengths."""

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2, 3)
        types = [s.type for s in inputs]
        self.input_types(types)
        return pointwise_shape(self, inputs).with_type(self.output_type(types))


@register
@dataclass(frozen=True)
class QuantizeLinear(_Linear):
    """``saturate(round_half_even(x / scale) + zero_point)``; inputs are x, scale and perhaps the zero point.

    The result has the zero point's type, else ``out_type``, else uint8. Floating results are not rounded to
    integers.
    """

    name: ClassVar[str] = "quantizelinear"
    out_type: Type | None = None

    def input_types(self, types: Sequence[Type]) -> None:
        if not types[1].is_floating:
            raise self.fail(f"scale must be floating point, got {types[1].name}")
        if len(types) == 3 and self.out_type not in (None, types[2]):
            raise self.fail(f"zero point is {types[2].name}, out_type is {self.out_type}")

    def output_type(self, types: Sequence[Type]) -> Type:
        if len(types) == 3:
            return types[2]
        return Type.uint8_type if self.out_type is None else self.out_type

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        target = self.output_type([s.dtype(v) for v in x])
        wide = s.dtype(x[1]).compute
        scaled = s.div(s.cast(x[0], wide), s.cast(x[1], wide))
        if target.is_floating:
            shifted = s.add(scaled, s.cast(x[2], wide)) if len(x) == 3 else scaled
            limit = float(finfo(target.numpy).max)
            low, high = s.const(-limit, wide), s.const(limit, wide)
            return s.cast(s.min(s.max(shifted, low), high), target)
        rounded = s.nearbyint(scaled)
        return s.cast(s.add(rounded, s.cast(x[2], wide)) if len(x) == 3 else rounded, target)


@register
@dataclass(frozen=True)
class DequantizeLinear(_Linear):
    """``(x - zero_point) * scale`` in the scale's type; inputs are x, scale and perhaps the zero point."""

    name: ClassVar[str] = "dequantizelinear"

    def input_types(self, types: Sequence[Type]) -> None:
        if not types[1].is_floating:
            raise self.fail(f"scale must be floating point, got {types[1].name}")
        if len(types) == 3 and types[2] is not types[0]:
            raise self.fail(f"zero point is {types[2].name}, values are {types[0].name}")

    def output_type(self, types: Sequence[Type]) -> Type:
        return types[1]

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        target = s.dtype(x[1])
        exact = Type.int32_type if s.dtype(x[0]) in _SMALL else target.compute
        wide = target.compute
        value = s.cast(x[0], exact)
        if len(x) == 3:
            value = s.sub(value, s.cast(x[2], exact))
        return s.cast(s.mul(s.cast(value, wide), s.cast(x[1], wide)), target)


@register
@dataclass(frozen=True)
class NearestFloat8(Pointwise):
    """``dequantizelinear(quantizelinear(x, scale), scale)`` of float32 by way of a float8, with ``2**exponent`` as the
    scale, for one of `exponents`."""

    name: ClassVar[str] = "nearest_float8"
    target_type: Type = Type.fp8e4m3fn_type
    exponent: int = 0

    def input_types(self, types: Sequence[Type]) -> None:
        if types[0] is not Type.float_type or self.target_type not in NEAREST:
            raise self.fail(f"expected float32 and a float8, got {types[0].name} and {self.target_type.name}")
        able = self.exponents(self.target_type)
        if self.exponent not in able:
            raise self.fail(f"the exponent must be from {able[0]} to {able[-1]}, got {self.exponent}")

    @staticmethod
    def exponents(type: Type) -> range:
        """Return the exponents of scales whose products with every number of a float8 type are normal in float32, and
        stay finite times 2**24, the factor that rounding kernels use."""
        numbers = finfo(type.numpy)
        (_, least), (_, most) = (math.frexp(float(x)) for x in (numbers.smallest_subnormal, numbers.max))
        return range(np.finfo(np.float32).minexp - least + 1, np.finfo(np.float32).maxexp - 24 - most + 1)

    def scalar(self, s: ScalarOps[V], *x: V) -> V:
        return getattr(s, NEAREST[self.target_type])(x[0], s.const(2.0**self.exponent, s.dtype(x[0])))


_SMALL = frozenset({Type.int8_type, Type.uint8_type, Type.int16_type, Type.uint16_type, Type.int32_type})


@dataclass(frozen=True)
class _Nibbles(Operator):
    """Operator between values and bytes that hold two neighbours along ``axis``, the first as low nibble."""

    AXES: ClassVar[tuple[str, ...]] = ("axis",)
    axis: int = -1

    def packed_shape(self, shape: Shape, type: Type) -> Shape:
        """Return the shape of the bytes that hold a tensor's values."""
        axis = self.resolve_axis(self.axis, shape.ndim)
        dims = list(shape.dims)
        d = dims[axis]
        if d.min % 2 or d.max % 2:
            raise self.fail(f"axis {axis} of {shape} must have an even length")
        dims[axis] = DynamicDimension(d.min // 2, d.max // 2)
        return Shape.dynamic(type, dims)

    def unpacked_shape(self, shape: Shape, type: Type) -> Shape:
        """Return the shape of the values that a tensor of bytes holds."""
        axis = self.resolve_axis(self.axis, shape.ndim)
        dims = list(shape.dims)
        dims[axis] = DynamicDimension(2 * dims[axis].min, 2 * dims[axis].max)
        return Shape.dynamic(type, dims)

    def join(self, nibbles: np.ndarray) -> np.ndarray:
        """Return the bytes (uint8) of neighbouring values (uint8, below 16) along the axis."""
        last = np.moveaxis(nibbles, self.axis, -1)
        return np.moveaxis(last[..., ::2] | (last[..., 1::2] << 4), -1, self.axis)

    def split(self, packed: np.ndarray) -> np.ndarray:
        """Return the values (uint8, below 16) of bytes (uint8) along the axis."""
        last = np.moveaxis(packed, self.axis, -1)
        pairs = np.stack([last & 15, last >> 4], -1).reshape(*last.shape[:-1], 2 * last.shape[-1])
        return np.moveaxis(pairs, -1, self.axis)


def _expect_bytes(op: Operator, shape: Shape) -> None:
    if shape.type not in (Type.int8_type, Type.uint8_type):
        raise op.fail(f"input must be int8 or uint8, got {shape.type.name}")


@register
@dataclass(frozen=True)
class PackInt4(_Nibbles):
    """Neighbouring values along ``axis`` as the nibbles of one byte.

    Values saturate to [0, 15] (uint8) or [-8, 7] (int8).
    """

    name: ClassVar[str] = "pack_int4"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        _expect_bytes(self, inputs[0])
        return self.packed_shape(inputs[0], inputs[0].type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        low, high = (-8, 7) if x.dtype == np.int8 else (0, 15)
        return self.join(np.clip(x, low, high).astype(np.uint8) & 15).view(x.dtype)


@register
@dataclass(frozen=True)
class UnpackInt4(_Nibbles):
    """The nibbles of each byte as neighbouring values along ``axis``: uint8 [0, 15] or int8 [-8, 7]."""

    name: ClassVar[str] = "unpack_int4"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        _expect_bytes(self, inputs[0])
        return self.unpacked_shape(inputs[0], inputs[0].type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = self.split(args[0].view(np.uint8))
        return ((values ^ 8) - np.uint8(8)).view(np.int8) if args[0].dtype == np.int8 else values


@register
@dataclass(frozen=True)
class PackFp4(_Nibbles):
    """Neighbouring floats along ``axis`` as float4 (e2m1, saturating) in the nibbles of one byte."""

    name: ClassVar[str] = "pack_fp4"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if not inputs[0].type.is_floating:
            raise self.fail(f"input must be floating point, got {inputs[0].type.name}")
        return self.packed_shape(inputs[0], Type.fp4x2_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        exact = np.clip(args[0].astype(np.float32), -6, 6)
        return self.join(exact.astype(Type.fp4e2m1_type.numpy).view(np.uint8) & 15)


@register
@dataclass(frozen=True)
class UnpackFp4(_Nibbles):
    """The float4 (e2m1) nibbles of each byte as neighbouring float8 (e4m3fn) values along ``axis``."""

    name: ClassVar[str] = "unpack_fp4"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].type is not Type.fp4x2_type:
            raise self.fail(f"input must be fp4x2_type, got {inputs[0].type.name}")
        return self.unpacked_shape(inputs[0], Type.fp8e4m3fn_type)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        values = np.ascontiguousarray(self.split(args[0])).view(Type.fp4e2m1_type.numpy)
        return values.astype(np.float32).astype(output.type.numpy)
