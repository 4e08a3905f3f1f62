"""Resizing by interpolation (ONNX Resize)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ..core.dim import Dim, SymbolicLengthError, known_equal, less_equal, select
from ..core.shape import UNBOUNDED, DynamicDimension, Shape
from ..core.types import Type, from_numpy
from ..dataclass import dataclass
from .base import Operator, register
from .dims import map_dim, packed_like
from .scalar import cast_array

SIGNIFICAND = 24  # bits of float32
LONGEST_ROUNDED = 1 << 16
"""Longest symbolic length whose product with a scale may be rounded: more than sides of images have. Each doubling is
one more condition in the expression of the product."""
MODES = ("nearest", "linear", "cubic")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)


def source_coordinates(mode: str, length: int, out: int, scale: float) -> np.ndarray:
    """Return the input coordinate of every output position of an axis (ONNX ``coordinate_transformation_mode``).

    Computed in float32, as in ONNX Runtime: a scale of 0.6 then means 3/5 and not the nearest float.
    """
    x, step, half = np.arange(out, dtype=np.float32), np.float32(scale), np.float32(0.5)
    if mode == "align_corners":
        return x * np.float32(length - 1) / np.float32(out - 1) if out > 1 else np.zeros(out, np.float32)
    if mode == "asymmetric":
        return x / step
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / step
    if mode == "pytorch_half_pixel" and out <= 1:
        return np.zeros(out, np.float32)
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(out) / (step * np.float32(length))
        return np.float32(length) / 2 * (1 - adjustment) + (x + half) / step - half
    return (x + half) / step - half


def scaled_length(length: int, scale: float) -> int:
    """Return ``floor(length * scale)`` with the product in float32, as in ONNX Runtime and ONNX shape inference.

    Raises:
        SymbolicLengthError: the product with a symbolic length is too large.
    """
    if isinstance(length, Dim):
        numerator, denominator = float(np.float32(scale)).as_integer_ratio()
        if numerator == denominator:
            return length
        exact = (1 << SIGNIFICAND) // numerator
        most = max(exact, min(LONGEST_ROUNDED, (denominator << (SIGNIFICAND - 1)) // numerator))
        if not less_equal(length, most):
            raise SymbolicLengthError(f"the product of the length {length} and {scale} is too large for float32")
        product = length * numerator
        last = (most * numerator).bit_length() if most > exact else 0
        for bits in range(SIGNIFICAND, last):  # half of the last place is added: it doubles
            half = 1 << max(bits - SIGNIFICAND - 1, 0)
            product = product + select(less_equal(-(-(1 << bits) // numerator), length), half, 0)
        return product // denominator  # type: ignore[no-any-return]
    return int(np.floor(np.float32(length) * np.float32(scale)))


def nearest_index(mode: str, coordinate: np.ndarray, length: int) -> np.ndarray:
    """Return the input position nearest to each coordinate (ONNX ``nearest_mode``)."""
    if mode == "round_prefer_floor":
        position = np.ceil(coordinate - 0.5)
    elif mode == "round_prefer_ceil":
        position = np.floor(coordinate + 0.5)
    else:
        position = np.floor(coordinate) if mode == "floor" else np.ceil(coordinate)
    return np.clip(position, 0, length - 1).astype(np.int64)


def interpolation_taps(
    mode: str, coordinate: np.ndarray, length: int, cubic_coeff_a: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the input positions and weights of each output position: 2 (linear) or 4 (cubic) pairs.

    Linear interpolation before the first element reads the first two, as in PyTorch and ONNX Runtime: the second's
    weight is 0, and an infinity there gives NaN.
    """
    if mode == "linear":
        coordinate = np.maximum(coordinate, 0)
    base = np.floor(coordinate)
    t = coordinate - base
    if mode == "linear":
        weights = [1 - t, t]
        offsets: tuple[int, ...] = (0, 1)
    else:
        a = cubic_coeff_a
        offsets = (-1, 0, 1, 2)
        weights = []
        for d in (t + 1, t, 1 - t, 2 - t):
            near = ((a + 2) * d - (a + 3)) * d * d + 1
            far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
            weights.append(np.where(d <= 1, near, far))
    positions = [np.clip(base + k, 0, length - 1).astype(np.int64) for k in offsets]
    return list(zip(positions, weights))


@register
@dataclass(frozen=True)
class Resize(Operator):
    """The input resampled to ``sizes``, or to ``floor(length * scales)``, one value an axis.

    A second input holds the sizes (integers) or the scales (floats) instead, and lengths are known at run
    time only.
    """

    name: ClassVar[str] = "resize"
    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    nearest_mode: str = "floor"
    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        shape = self.expect_inputs(inputs, 1, 2)[0]
        for what, value, known in (
            ("mode", self.mode, MODES),
            ("nearest_mode", self.nearest_mode, NEAREST),
            ("coordinate_transformation_mode", self.coordinate_transformation_mode, COORDINATES),
        ):
            if value not in known:
                raise self.fail(f"{what} is {value!r}, expected one of {', '.join(known)}")
        if len(inputs) == 2:
            given = inputs[1]
            if given.is_dynamic or given.lens != (shape.ndim,):
                raise self.fail(f"second input needs one value for each of the {shape.ndim} axes, got {given}")
            return Shape.dynamic(shape.type, [DynamicDimension(0, UNBOUNDED)] * shape.ndim)
        if bool(self.sizes) == bool(self.scales):
            raise self.fail(f"exactly one of sizes {list(self.sizes)} and scales {list(self.scales)} must be given")
        if len(self.sizes or self.scales) != shape.ndim:
            raise self.fail(f"sizes or scales need one value for each of the {shape.ndim} axes")
        if any(v <= 0 for v in self.scales) or any(v < 0 for v in self.sizes):
            raise self.fail(f"sizes {list(self.sizes)} and scales {list(self.scales)} must be positive")
        if self.sizes and not shape.is_dynamic:
            return packed_like(shape, self.sizes)
        if self.sizes:
            return Shape(shape.type, self.sizes)
        dims = [map_dim(d, partial(scaled_length, scale=s)) for d, s in zip(shape.dims, self.scales)]
        if shape.is_dynamic:
            return Shape.dynamic(shape.type, dims)
        return packed_like(shape, [d.min for d in dims])

    def samples(
        self, lens: Sequence[int], sizes: Sequence[int] = (), scales: Sequence[float] = ()
    ) -> list[tuple[int, np.ndarray]]:
        """Return the resampled axes, with the input coordinate of every output position.

        Args:
            lens: input lengths.
            sizes: output lengths; by default, with ``scales`` missing too, the attributes.
            scales: factors.
        """
        if not sizes and not scales:
            sizes, scales = self.sizes, self.scales
        if sizes:
            factors = [1.0 if known_equal(out, n) or not n else out / n for out, n in zip(sizes, lens)]
        else:
            factors = [float(np.float32(v)) for v in scales]
            sizes = [scaled_length(n, f) for n, f in zip(lens, factors)]
        found = []
        for axis, (n, out, factor) in enumerate(zip(lens, sizes, factors)):
            if n == out and (factor == 1.0 or not n):
                continue
            if n == 0 and out:
                raise self.fail(f"axis {axis} is empty and cannot grow to {out}")
            found.append((axis, source_coordinates(self.coordinate_transformation_mode, n, out, factor)))
        return found

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        if len(args) == 1:
            samples = self.samples(x.shape)
        elif args[1].dtype.kind in "iu":
            samples = self.samples(x.shape, sizes=args[1].tolist())
        else:
            samples = self.samples(x.shape, scales=args[1].tolist())
        if self.mode == "nearest":
            for axis, coordinate in samples:
                x = np.take(x, nearest_index(self.nearest_mode, coordinate, x.shape[axis]), axis)
            return x
        work = x.astype(np.float64)
        for axis, coordinate in samples:
            total = np.zeros((*work.shape[:axis], len(coordinate), *work.shape[axis + 1 :]))
            weight_lens = [-1 if k == axis else 1 for k in range(x.ndim)]
            for position, weight in interpolation_taps(self.mode, coordinate, work.shape[axis], self.cubic_coeff_a):
                total += np.take(work, position, axis) * weight.reshape(weight_lens)
            work = total
        return cast_array(work, from_numpy(x.dtype))

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return output.elements * {"nearest": 0, "linear": 8, "cubic": 32}[self.mode]


@register
@dataclass(frozen=True)
class WindowSum(Operator):
    """Weighted sums of elements of an axis, from three inputs: x, positions and weights [out, taps].

    ``out[..., k, ...] = sum_t weights[k, t] * x[..., positions[k, t], ...]``.
    """

    name: ClassVar[str] = "window_sum"
    axis: int = 0

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        x, positions, weights = self.expect_inputs(inputs, 3)
        if not 0 <= self.axis < x.ndim:
            raise self.fail(f"axis {self.axis} is outside the input's {x.ndim} dimensions")
        if positions.ndim != 2 or positions.lens != weights.lens:
            raise self.fail(f"positions and weights need equal lengths [out, taps], got {positions} and {weights}")
        if not x.type.is_floating or not weights.type.is_floating or positions.type is not Type.int64_type:
            raise self.fail(f"expected floats, int64 positions and floats, got {x}, {positions} and {weights}")
        count = positions.lens[0]
        if x.is_dynamic:
            dims = [DynamicDimension(count, count) if a == self.axis else d for a, d in enumerate(x.dims)]
            return Shape.dynamic(x.type, dims)
        return packed_like(x, [count if a == self.axis else n for a, n in enumerate(x.lens)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, positions, weights = args
        wide = x.astype(np.float64)
        lens = [-1 if k == self.axis else 1 for k in range(x.ndim)]
        total = np.zeros((*x.shape[: self.axis], len(positions), *x.shape[self.axis + 1 :]))
        for position, weight in zip(positions.T, weights.T):
            total += np.take(wide, position, self.axis) * weight.reshape(lens)
        return cast_array(total, from_numpy(x.dtype))

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * inputs[1].lens[1]
