"""Region pooling (ONNX ``RoiAlign``): a task computes one line of bins of a region; lanes run along the channels."""

from __future__ import annotations

from math import inf, prod

from ....core.types import Type
from ....ops.detection import RoiAlign
from ....ops.pooling import PoolingMode
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...region_samples import neighbours, samples
from ...statements import cast_text, const_text, dtype_name, for_tasks, kernel_text, load_text, store_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty
from .checks import Checks

BLOCK = 2048
"""Most channels whose totals are kept on the stack: 8 KiB of float32, which stay in the L1 cache."""
CORNERS = tuple((a, b) for a in ("low", "high") for b in ("low", "high"))


def regions_launch(op: RoiAlign, x: Tensor, rois: Tensor, batch: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch. Operands: ``x`` [n, c, h, w], ``rois`` [regions, 4], ``batch`` [regions], float32 ``scale``
    [1] (spatial scale), ``out`` [regions, c, *bins].

    Positions are computed in float64; weights and products in float32, accumulated in float32 (float64 for float64
    inputs). An image index out of range is a fault of the call. It is fastest with channels that are contiguous in
    ``x``.
    """
    arguments = Arguments()
    for name, tensor in (("x", x), ("rois", rois), ("batch", batch), ("out", out)):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    arguments.pointer("p_scale", "scale", "float32")
    arguments.integers(images=x.lens[0], channels=x.lens[1], ratio=op.sampling_ratio, batch_step=batch.strides[0])
    arguments.integers(x_length=x.lens[3], y_length=x.lens[2], x_bins=out.lens[3], y_bins=out.lens[2])
    arguments.integers(image_step=x.strides[0], line_step=x.strides[2], pixel_step=x.strides[3])
    arguments.integers(region_step=rois.strides[0], side_step=rois.strides[1])
    arguments.integers(out_region=out.strides[0], out_line=out.strides[2], out_column=out.strides[3])
    steps = [arguments.step(f"{name}_channel", t.strides[1]) for name, t in (("x", x), ("out", out))]
    checks = Checks(arguments, [True])
    largest = op.mode is PoolingMode.max
    sums = "float64" if out.type is Type.double_type else "float32"
    lanes = host.lanes(sums)

    def start(left: str) -> list[str]:
        return [f"store(totals, c - first, {const_text(sums, -inf if largest else 0.0, lanes)})"]

    def sample(left: str) -> list[str]:
        lines = [f"total = load(totals, c - first, {lanes})"]
        for a, b in CORNERS:
            value = load_text(f"q_{a}_{b}", "c", x.strides[1], steps[0], lanes, left)
            product = f"mul({cast_text(value, dtype_name(x.type), 'float32')}, weight_{a}_{b})"
            added = cast_text(product, "float32", sums)
            lines.append(f"total = {'max' if largest else 'add'}(total, {added})")
        return [*lines, "store(totals, c - first, total)"]

    def finish(left: str) -> list[str]:
        total = f"load(totals, c - first, {lanes})"
        value = f"where(some, {total}, {const_text(sums, 0.0, lanes)})" if largest else f"div({total}, taken)"
        stored = cast_text(cast_text(value, sums, "float32"), "float32", dtype_name(out.type))
        return [store_text("r_out", "c", out.strides[1], steps[1], stored, left)]

    buffer = CodeBuffer()
    index = "load_scalar(p_batch, region * batch_step)"
    buffer.line("region = idiv(task, y_bins)", "line = task - region * y_bins")
    buffer.line(*checks.scalar(0, "image", index, Type.uint64_type, "images"))  # unsigned: negative indices do not wrap
    for axis, side in (("x", 0), ("y", 1)):
        samples(buffer, op, axis, "region * region_step", side)
    buffer.line("some = y_count * x_count > 0", f"taken = cast_{sums}(imax(y_count * x_count, 1))")
    with buffer.block(f"for block in range(idiv(channels + {BLOCK} - 1, {BLOCK})):"):
        buffer.line(f"first = block * {BLOCK}", f"last = imin(channels, first + {BLOCK})")
        with buffer.block("for column in range(x_bins):"):
            buffer.line(*vector_loop(lanes, start))
            with buffer.block("for m in range(y_count):"):
                neighbours(buffer, "y", "line", "m")
                with buffer.block("for n in range(x_count):"):
                    neighbours(buffer, "x", "column", "n")
                    for a, b in CORNERS:
                        place = f"image * image_step + y_{a} * line_step + x_{b} * pixel_step"
                        buffer.line(f"q_{a}_{b} = offset(p_x, {place})")
                        buffer.line(f"weight_{a}_{b} = cast_float32(mul(y_{a}_weight, x_{b}_weight))")
                    buffer.line(*vector_loop(lanes, sample))
            place = "region * out_region + line * out_line + column * out_column"
            buffer.line(f"r_out = offset(p_out, {place})", *vector_loop(lanes, finish))
    prologue = [f"totals = local_{sums}({BLOCK + lanes})", *checks.begin()]
    text = kernel_text([*arguments.bind(), *prologue, *for_tasks(buffer.lines), *checks.end()])
    return Launch(
        kernel=cpu_kernel("roialign_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(out.lens[0] * out.lens[2], [out.lens[0], out.lens[1], out.lens[3]])),
        flops=8 * prod(out.lens) * max(op.sampling_ratio, 1) ** 2,
        bytes=x.footprint + rois.footprint + out.footprint,
        checks=(f"{x.lens[0]} images",),
    )
