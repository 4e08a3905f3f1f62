"""Region pooling (ONNX ``RoiAlign``): one thread per bin and channel."""

from __future__ import annotations

from math import inf, prod

from ....core.types import Type
from ....ops.detection import RoiAlign
from ....ops.pooling import PoolingMode
from ...launch import Launch
from ...printer import VectorValue, literal
from ...problems.cluster import Tensor
from ...region_samples import neighbours, samples
from ..printer import ThreadPrinter
from .elements import ElementText


def regions_launch(op: RoiAlign, x: Tensor, rois: Tensor, batch: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch. Operands: ``x`` [n, c, h, w], ``rois`` [regions, 4], ``batch`` [regions], float32 ``scale``
    [1] (spatial scale), ``out`` [regions, c, *bins].

    Positions are computed in float64; weights and products in float32, accumulated in float32 (float64 for float64
    inputs). An image index out of range is a fault of the call.
    """
    tensors = [("x", x), ("rois", rois), ("batch", batch), ("scale", Tensor(Type.float_type, (1,), (1,))), ("out", out)]
    text = ElementText(tensors, out.lens, [out.strides], 1)
    text.arguments.integers(images=x.lens[0], ratio=op.sampling_ratio, batch_step=batch.strides[0])
    text.arguments.integers(x_length=x.lens[3], y_length=x.lens[2], x_bins=out.lens[3], y_bins=out.lens[2])
    text.arguments.integers(**{f"{n}_step": s for n, s in zip(("image", "channel", "line", "pixel"), x.strides)})
    text.arguments.integers(region_step=rois.strides[0], side_step=rois.strides[1])
    text.faults()
    text.begin()
    buffer = text.buffer
    region, channel, line, column = text.places
    buffer.line(f"image = cast_int64(load_scalar(p_batch, {region} * batch_step))")
    with buffer.block("if (image < 0) | (image >= images):"):
        buffer.line("note_fault(fault, step_number, 0, image)")
        buffer.line("image = 0")
    buffer.line(f"plane = image * image_step + {channel} * channel_step")
    for axis, side in (("x", 0), ("y", 1)):
        samples(buffer, op, axis, f"{region} * region_step", side)
    largest = op.mode is PoolingMode.max
    sums = "float64" if out.type is Type.double_type else "float32"
    buffer.line(f"total = const_{sums}({literal(-inf if largest else 0.0)}, 0)")
    with buffer.block("for m in range(y_count):"):
        neighbours(buffer, "y", line, "m")
        with buffer.block("for n in range(x_count):"):
            neighbours(buffer, "x", column, "n")
            for a in ("low", "high"):
                for b in ("low", "high"):
                    place = f"plane + y_{a} * line_step + x_{b} * pixel_step"
                    buffer.line(f"weight = cast_float32(mul(y_{a}_weight, x_{b}_weight))")
                    buffer.line(f"value = mul(cast_float32(load_scalar(p_x, {place})), weight)")
                    buffer.line(f"total = {'max' if largest else 'add'}(total, cast_{sums}(value))")
    if largest:
        with buffer.block("if y_count * x_count == 0:"):
            buffer.line(f"total = const_{sums}(0.0, 0)")
    else:
        buffer.line(f"total = div(total, cast_{sums}(imax(y_count * x_count, 1)))")
    printer = ThreadPrinter(buffer, 1)
    text.store(printer.stored(VectorValue("splat(cast_float32(total), 1)", Type.float_type), out.type))
    moved = x.footprint + rois.footprint + out.footprint
    flops = 8 * prod(out.lens) * max(op.sampling_ratio, 1) ** 2
    return text.launch("roialign_kernel", origin, moved, flops, (f"{x.lens[0]} images",))
