"""Text of kernels that pool image regions (ONNX ``RoiAlign``): sample positions and weights; shared by all back ends.

Positions are computed in float64, weights in float32 (`ops.detection.RoiAlign.compute`).
"""

from __future__ import annotations

from ..ops.detection import RoiAlign
from .printer import CodeBuffer

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
