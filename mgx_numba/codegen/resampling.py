"""Text of kernels that compute the tables of resized axes, because lengths are symbolic, and the sample positions and
weights of image regions (ONNX ``RoiAlign``); shared by all back ends.

The tables have the values of the operators' NumPy definition, bit by bit: coordinates are computed in float32, step by
step. Positions in regions are computed in float64, weights in float32 (`ops.detection.RoiAlign.compute`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.dim import Length, SharedLength, known_equal
from ..dataclass import dataclass
from ..ops.detection import RoiAlign
from ..ops.resize import Resize
from .printer import CodeBuffer
from .problems.cluster import Tensor
from .statements import const_text


@dataclass(frozen=True)
class Resampled:
    """An axis of ``length`` elements that is resized to ``count``; ``factor`` is None where it is the quotient of the
    two.

    Attributes:
        step: elements of the source between neighbours, by which positions are multiplied.
        room: entries of a table, at least ``count``; further entries repeat the last position.
    """

    length: SharedLength
    count: SharedLength
    factor: float | None
    step: SharedLength
    room: SharedLength


def changed_axes(op: Resize, lens: Sequence[Length], counts: Sequence[Length]) -> list[int]:
    """Return the axes that a resize from ``lens`` to ``counts`` changes, as far as is known; a factor may keep a
    length."""
    if op.sizes:
        return [axis for axis, (n, count) in enumerate(zip(lens, counts)) if not known_equal(n, count)]
    return [axis for axis, factor in enumerate(op.scales) if float(np.float32(factor)) != 1.0]


def resampled_axes(op: Resize, x: Tensor, out: Tensor) -> dict[int, Resampled]:
    """Return the axes that a resize of symbolic lengths changes, each with the parameters of its table."""
    found = {}
    for axis in changed_axes(op, x.lens, out.lens):
        factor = None if op.sizes else float(np.float32(op.scales[axis]))
        found[axis] = Resampled(x.lens[axis], out.lens[axis], factor, x.strides[axis], out.lens[axis])
    return found


def taps_of(op: Resize) -> int:
    """Return the number of positions that an interpolated element is a sum of."""
    return 2 if op.mode == "linear" else 4


def coordinates(op: Resize, factor: float | None, lanes: int) -> list[str]:
    """Return lines that set ``v`` to the source coordinate of position ``i``, as `source_coordinates`.

    They use ``count`` and ``length``; ``i`` has ``lanes`` lanes, 0 for a scalar.
    """

    def spread(text: str) -> str:
        return f"splat({text}, {lanes})" if lanes else text

    half, zero = const_text("float32", 0.5, lanes), const_text("float32", 0, lanes)
    mode, real = op.coordinate_transformation_mode, "cast_float32({})".format
    quotient = real("div(cast_float64(count), cast_float64(length))")
    scale = quotient if factor is None else const_text("float32", factor, 0)
    lines = ["x = cast_float32(i)", f"scale = {spread(scale)}"]
    centred = f"div(add(x, {half}), scale)"
    if mode == "align_corners":
        far = f"div(mul(x, {spread(real('length - 1'))}), {spread(real('count - 1'))})"
        lines += ["if count > 1:", f"    v = {far}", "else:", f"    v = {zero}"]
    elif mode == "asymmetric":
        lines.append("v = div(x, scale)")
    elif mode == "tf_half_pixel_for_nn":
        lines.append(f"v = {centred}")
    elif mode == "half_pixel_symmetric":
        lines += [
            f"whole = {spread(real('length'))}",
            f"share = div({spread(real('count'))}, mul(scale, whole))",
            f"away = mul(mul(whole, {half}), sub({const_text('float32', 1, lanes)}, share))",
            f"v = sub(add(away, {centred}), {half})",
        ]
    else:
        lines.append(f"v = sub({centred}, {half})")
        if mode == "pytorch_half_pixel":
            lines += ["if count <= 1:", f"    v = {zero}"]
    # An axis that keeps its length is not resampled.
    return [*lines, "if length == count:", "    v = x"] if factor is None else lines


def nearest(op: Resize, lanes: int) -> str:
    """Return the text of the position nearest to the coordinate ``v``, as `nearest_index`; it may be outside."""
    half = const_text("float32", 0.5, lanes)
    rounded = {
        "round_prefer_floor": f"ceil(sub(v, {half}))",
        "round_prefer_ceil": f"floor(add(v, {half}))",
        "floor": "floor(v)",
        "ceil": "ceil(v)",
    }[op.nearest_mode]
    return f"cast_int64({rounded})"


def taps(op: Resize, lanes: int) -> tuple[list[str], list[str]]:
    """Return lines that set the weights ``w0``, ``w1``, ... of the coordinate ``v``, and the texts of the positions,
    which may be outside; as `interpolation_taps`."""

    def number(value: float) -> str:
        return const_text("float32", float(value), lanes)

    linear = op.mode == "linear"
    lines = [*([f"v = max(v, {number(0)})"] if linear else []), "base = floor(v)", "t = sub(v, base)"]
    offsets = [0, 1] if linear else [-1, 0, 1, 2]
    if linear:
        lines += [f"w0 = sub({number(1)}, t)", "w1 = t"]
    else:
        a = op.cubic_coeff_a
        away = (f"add(t, {number(1)})", "t", f"sub({number(1)}, t)", f"sub({number(2)}, t)")
        for k, distance in enumerate(away):
            near = f"mul(mul(sub(mul({number(a + 2)}, d), {number(a + 3)}), d), d)"
            far = f"mul(add(mul(sub(mul({number(a)}, d), {number(5 * a)}), d), {number(8 * a)}), d)"
            lines += [
                f"d = {distance}",
                f"w{k} = where(le(d, {number(1)}), add({near}, {number(1)}), sub({far}, {number(4 * a)}))",
            ]
    return lines, [f"cast_int64(add(base, {number(offset)}))" for offset in offsets]


def clipped(value: str) -> str:
    """Return the line that sets ``at`` to the nearest position inside the source."""
    return f"at = max(0, min({value}, length - 1))"


LARGEST_BIN = 1.7976931348623157e308
"""The largest float64: bins of regions that end at infinity are above it, and take no samples."""


def samples(buffer: CodeBuffer, op: RoiAlign, axis: str, region: str, side: int) -> None:
    """Emit, along an axis, a region's start, the length of its bins, and the samples per bin."""
    half = op.coordinate_transformation_mode == "half_pixel"
    for name, k in (("first", side), ("last", side + 2)):
        corner = f"cast_float32(load_scalar(p_rois, {region} + {k} * side_step))"
        scaled = f"cast_float64(mul({corner}, load_scalar(p_scale, 0)))"
        buffer.line(f"{axis}_{name} = {f'sub({scaled}, 0.5)' if half else scaled}")
    size = f"sub({axis}_last, {axis}_first)"
    buffer.line(f"{axis}_bin = div({size if half else f'max({size}, 1.0)'}, cast_float64({axis}_bins))")
    buffer.line(f"{axis}_count = ratio")
    with buffer.block("if ratio == 0:"):
        buffer.line(f"{axis}_count = imax(cast_int64(ceil({axis}_bin)), 0)")
        with buffer.block(f"if gt({axis}_bin, {LARGEST_BIN!r}):"):
            buffer.line(f"{axis}_count = 0")


def neighbours(buffer: CodeBuffer, axis: str, number: str, sample: str) -> None:
    """Emit the two elements along an axis around a sample, and their weights; weights outside the image are zero."""
    part = f"div(add(cast_float64({sample}), 0.5), cast_float64({axis}_count))"
    buffer.line(f"place = add({axis}_first, mul({axis}_bin, add(cast_float64({number}), {part})))")
    buffer.line(f"length = cast_float64({axis}_length)")
    buffer.line("inside = logical_and(ge(place, -1.0), le(place, length))")
    buffer.line("place = min(max(place, 0.0), sub(length, 1.0))")
    buffer.line(f"{axis}_low = imin(imax(cast_int64(floor(place)), 0), {axis}_length - 1)")
    buffer.line(f"{axis}_high = imin({axis}_low + 1, {axis}_length - 1)")
    buffer.line(f"{axis}_high_weight = sub(place, cast_float64({axis}_low))")
    buffer.line(f"{axis}_low_weight = sub(1.0, {axis}_high_weight)")
    with buffer.block("if logical_not(inside):"):
        buffer.line(f"{axis}_high_weight = 0.0")
        buffer.line(f"{axis}_low_weight = 0.0")
