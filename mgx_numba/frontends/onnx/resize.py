"""Interpolation.

ai.onnx: Resize Upsample.
"""

from __future__ import annotations

import math

from ...core.dim import Dim, SymbolicLengthError, known_equal
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ...ops.resize import COORDINATES, MODES, NEAREST, scaled_length
from .builder import Builder, rank
from .node import Node
from .registry import register
from .resample import Axis, Kernel, interpolated, interpolated_type, resample
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
