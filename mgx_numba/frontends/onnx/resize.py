"""ONNX's Resize and Upsample, by the IR's ``resize`` or by explicit weights for each axis.

Antialiasing, ``exclude_outside``, ``tf_crop_and_resize`` and the aspect ratio policies have no counterpart in the IR's
``resize``. Their weights depend on lengths only, so each axis is a sum over weighted windows (a gather for nearest).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.dim import Dim, SymbolicLengthError, known_equal
from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from ...ops.resize import COORDINATES, MODES, NEAREST, nearest_index, scaled_length, source_coordinates
from ..sampling import window_sums
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import element_count

CROPS = "tf_crop_and_resize"  # the one choice of coordinates that the operator of the IR does not have
POLICIES = ("stretch", "not_larger", "not_smaller")


@register("Upsample")
def upsample(g: Builder, node: Node, x: Instruction, scales: Instruction | None = None) -> Instruction:
    """Emit Upsample, Resize's predecessor; scales are an attribute in operator set 7, an input from 9 on."""
    mode = node.get_choice("mode", ("nearest", "linear", "bilinear", "cubic"), "nearest")
    values = node.get_floats("scales") if scales is None else _floats(g, scales, "scales")
    return _resize_simple(g, x, "linear" if mode == "bilinear" else mode, values)


@register("Resize")
def resize(
    g: Builder,
    node: Node,
    x: Instruction,
    second: Instruction | None = None,
    scales: Instruction | None = None,
    sizes: Instruction | None = None,
) -> Instruction:
    """Emit Resize; set 10 has scales as its second input, later sets a region of interest, scales and sizes."""
    if node.opset < 11:
        if second is None:
            raise ParseError("input 'scales' is missing")
        mode = node.get_choice("mode", ("nearest", "linear"), "nearest")
        return _resize_simple(g, x, mode, _floats(g, second, "scales"))
    axes = g.axes(node.get_ints("axes", range(rank(x))), rank(x))
    lens = g.lens(x)
    factors = [] if scales is None else _floats(g, scales, "scales")
    lengths = [] if sizes is None else g.ints(sizes, "sizes")
    if bool(factors) == bool(lengths):
        raise ParseError("exactly one of inputs 'scales' and 'sizes' must be given")
    if len(factors or lengths) != len(axes):
        raise ParseError(f"scales or sizes have {len(factors or lengths)} values for {len(axes)} axes")
    if any(not math.isfinite(f) or f <= 0 for f in factors) or any(n < 0 for n in lengths):
        raise ParseError(f"scales {factors} or sizes {lengths} are not positive")
    changed = [(n, lens[a]) for n, a in zip(lengths, axes, strict=False) if not known_equal(n, lens[a])]
    if any((n == 0) != (length == 0) for n, length in changed):
        raise ShapeError(
            f"sizes {lengths} of axes {list(axes)} make an axis of the input {list(lens)} empty, or fill one"
        )
    policy = node.get_choice("keep_aspect_ratio_policy", POLICIES, "stretch")
    if lengths and policy != "stretch":
        choose = min if policy == "not_larger" else max
        factor = choose((n / lens[a] for n, a in zip(lengths, axes, strict=False) if n), default=1.0)
        lengths, kept = [math.floor(factor * lens[a] + 0.5) for a in axes], factor
    else:
        kept = None
    per_axis = [1.0] * len(lens)
    for k, axis in enumerate(axes):
        open_length = isinstance(lens[axis], Dim) or (lengths and isinstance(lengths[k], Dim))
        per_axis[axis] = (
            factors[k] if factors else kept or (math.nan if open_length else lengths[k] / max(lens[axis], 1))
        )
    target = (
        [n if f == 1 else scaled_length(n, f) for n, f in zip(lens, per_axis, strict=False)] if factors else [*lens]
    )
    for k, axis in enumerate(axes):
        target[axis] = lengths[k] if lengths else target[axis]
    coordinates = node.get_choice("coordinate_transformation_mode", (*COORDINATES, CROPS), "half_pixel")
    mode = node.get_choice("mode", MODES, "nearest")
    nearest = node.get_choice("nearest_mode", NEAREST, "round_prefer_floor")
    cubic = node.get_float("cubic_coeff_a", -0.75)
    exclude = node.get_bool("exclude_outside")
    smooth = node.get_bool("antialias") and mode != "nearest"
    if any(known_equal(n, 0) for n in target) and any(known_equal(n, 0) for n in lens):
        return g.reshape(x, target)
    if coordinates == CROPS or (exclude and mode != "nearest") or smooth or kept is not None:
        if x.shape.symbolic or any(isinstance(n, Dim) for n in target):
            raise SymbolicLengthError(f"resampling {list(lens)} to {target} takes tables of weights")
        region = None if second is None or coordinates != CROPS else _floats(g, second, "roi")
        if coordinates == CROPS and (region is None or len(region) != 2 * len(axes)):
            raise ParseError(f"coordinate mode tf_crop_and_resize needs input 'roi' of {2 * len(axes)} values")
        outside = node.get_float("extrapolation_value", 0.0)
        kernel = Kernel(mode, nearest, coordinates, cubic, exclude, smooth)
        return resample(g, x, kernel, [Axis(a, lens[a], target[a], per_axis[a]) for a in axes], region, outside)
    return _resize(g, x, mode, [] if lengths else per_axis, target if lengths else [], coordinates, nearest, cubic)


def _resize_simple(g: Builder, x: Instruction, mode: str, scales: list[float]) -> Instruction:
    """Emit the form before set 11: nearest rounds up where an axis shrinks (as in ONNX Runtime), else down."""
    shrinking = [s if s < 1 else 1.0 for s in scales]
    if mode == "nearest" and any(s < 1 for s in shrinking):
        x = _resize(g, x, mode, shrinking, [], "asymmetric", "ceil", -0.75)
        scales = [1.0 if s < 1 else s for s in scales]
        if all(s == 1 for s in scales):
            return x
    return _resize(g, x, mode, scales, [], "asymmetric", "floor", -0.75)


def _resize(
    g: Builder,
    x: Instruction,
    mode: str,
    scales: list[float],
    sizes: list[int],
    coordinates: str,
    nearest: str,
    cubic: float,
) -> Instruction:
    count = len(scales or sizes)
    if count != rank(x):
        raise ParseError(f"scales or sizes have {count} values for {rank(x)} dimensions")
    if scales and not all(math.isfinite(s) and s > 0 for s in scales):
        raise ParseError(f"scales {scales} are not positive")
    if not x.shape.symbolic:
        element_count(
            [max(1, int(n * s)) for n, s in zip(x.shape.max_lens, scales, strict=False)] if scales else sizes,
            "the result",
        )
    attributes = {"scales": tuple(scales)} if scales else {"sizes": tuple(sizes)}
    type_ = x.shape.type
    made = g.op(
        "resize",
        g.convert(x, interpolated_type(type_, mode)),
        **attributes,
        mode=mode,
        nearest_mode=nearest,
        coordinate_transformation_mode=coordinates,
        cubic_coeff_a=cubic,
    )
    return interpolated(g, made, type_, mode == "cubic")


def _floats(g: Builder, x: Instruction, what: str) -> list[float]:
    return [float(v) for v in g.constant(x, what).ravel()]


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
