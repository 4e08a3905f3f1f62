"""Rarer forms of Resize, by explicit weights for each axis.

Antialiasing, ``exclude_outside``, ``tf_crop_and_resize`` and the aspect ratio policies have no counterpart in the IR's
``resize``. Weights depend on lengths only, so each axis is a sum over weighted windows (a gather for nearest).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from ...ops.resize import nearest_index, source_coordinates
from ..sampling import window_sums
from .builder import Builder


@dataclass(frozen=True)
class Axis:
    """An axis to resample: its number, length, new length and scale."""

    number: int
    length: int
    out: int
    scale: float


@dataclass(frozen=True)
class Kernel:
    """Interpolation settings: ONNX Resize's mode, rounding, coordinates, cubic coefficient and flags."""

    mode: str
    nearest: str
    coordinates: str
    cubic: float
    exclude_outside: bool
    antialias: bool

    def places(self, axis: Axis, region: tuple[float, float] | None) -> np.ndarray:
        """Return the input coordinate of each output position; ``region`` is the relative start and end of the crop."""
        if region is None:
            return source_coordinates(self.coordinates, axis.length, axis.out, axis.scale)
        start, end = region
        last = axis.length - 1
        if axis.out == 1:
            return np.array([0.5 * (start + end) * last])
        return start * last + np.arange(axis.out) * (end - start) * last / (axis.out - 1)

    def weights(self, axis: Axis, places: np.ndarray) -> np.ndarray:
        """Return the weight of each input element in each output element: [out, length]."""
        stretch = min(axis.scale, 1.0) if self.antialias else 1.0
        reach = 1 if self.mode == "linear" else 2
        start = int(np.floor(-reach / stretch)) + 1
        taps = np.floor(places)[:, None] + np.arange(start, 2 - start)
        values = self._profile(np.abs(taps - places[:, None]) * stretch)
        inside = (taps >= 0) & (taps < axis.length)
        if self.exclude_outside:
            values = values * inside
        values = values / values.sum(1, keepdims=True)
        result = np.zeros((axis.out, axis.length))
        columns = np.clip(taps, 0, axis.length - 1).astype(np.int64)
        np.add.at(result, (np.arange(axis.out)[:, None], columns), values)
        return result

    def _profile(self, d: np.ndarray) -> np.ndarray:
        """Return the weight at a distance: a triangle, or cubic convolution."""
        if self.mode == "linear":
            return np.maximum(0, 1 - d)
        a = self.cubic
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))


def interpolated_type(type: Type, mode: str) -> Type:
    """Return the type in which elements are interpolated: their own for floats and nearest elements."""
    if type.is_floating or mode == "nearest":
        return type
    return Type.float_type if type.size < Type.float_type.size else Type.double_type


def interpolated(g: Builder, y: Instruction, type: Type, rounded: bool) -> Instruction:
    """Convert interpolated values to ``type``.

    ONNX's text does not say whether integers are ``rounded``. Linear interpolation truncates, as in ONNX Runtime;
    other forms round to the nearest integer, as in ONNX Runtime (antialiased) and ONNX's reference.
    """
    whole = rounded and y.shape.type.is_floating and not type.is_floating
    return g.convert(g.op("nearbyint", y) if whole else y, type)


def resample(
    g: Builder,
    x: Instruction,
    kernel: Kernel,
    axes: Sequence[Axis],
    region: Sequence[float] | None,
    outside: float,
) -> Instruction:
    """Resample each axis of ``x``; positions beyond a crop's input get the value ``outside``.

    Raises:
        UnsupportedError: an axis needs a weight matrix of more than 2**24 elements.
    """
    type = x.shape.type
    wide = g.convert(x, interpolated_type(type, kernel.mode))
    valid = np.ones((1,) * x.shape.ndim, bool)
    for k, axis in enumerate(axes):
        crop = None if region is None else (region[k], region[k + len(axes)])
        g.limit(axis.out + axis.length, "a table of positions")
        places = kernel.places(axis, crop)
        if crop is not None:
            shape = [-1 if j == axis.number else 1 for j in range(x.shape.ndim)]
            valid = valid & ((places >= 0) & (places <= axis.length - 1)).reshape(shape)
        if axis.out == axis.length and (places == np.arange(axis.out)).all():
            continue
        if kernel.mode == "nearest":
            index = nearest_index(kernel.nearest, places, axis.length)
            wide = g.op("gather", wide, g.literal(index), axis=axis.number)
            continue
        if axis.out * axis.length > LARGEST:
            raise UnsupportedError(f"resampling {axis.length} to {axis.out} needs too large a matrix")
        wide = window_sums(g, wide, axis.number, kernel.weights(axis, places))
    y = interpolated(g, wide, type, kernel.mode == "cubic" or kernel.antialias or kernel.exclude_outside)
    if valid.all():
        return g.op("identity", x) if y is x else y
    return g.pointwise("where", g.literal(valid), y, g.like(outside, y))
