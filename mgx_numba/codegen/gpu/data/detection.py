"""Operators of object detectors: non-maximum suppression of boxes, and region pooling (ONNX ``RoiAlign``).

Suppression takes one block per class of each image. Repeatedly, the threads find the best remaining box, each among its
own boxes, and drop the boxes that overlap it too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from ....core.types import Type
from ....ops.detection import RoiAlign
from ....ops.pooling import PoolingMode
from ...arguments import Arguments
from ...launch import Launch
from ...printer import CodeBuffer, VectorValue, literal
from ...problems.cluster import Tensor
from ...resampling import neighbours, samples
from ..architecture import WARP
from ..kernel import gpu_launch
from ..printer import ThreadPrinter, dtype_name
from .elements import ElementText
from .topk import Order, join_first

THREADS = 256
"""Threads per block. No figures kept."""


def suppression_launch(
    center_point_box: bool, boxes: Tensor, scores: Tensor, limits: Sequence[Tensor], room: int, origin: str = ""
) -> Launch:
    """Return the launch that selects the boxes of every image and class.

    Operands: ``boxes`` [n, boxes, 4]; ``scores`` [n, classes, boxes]; as far as given ``limit0`` (most boxes),
    ``limit1`` (overlap threshold), ``limit2`` (least score); int64 ``picked`` [n * classes, room], best first, and
    ``counts`` [n * classes]; scratch bool ``dropped`` [n * classes, boxes]. NaN scores are never selected; at most
    ``room`` boxes are. Boxes are compared in float64.
    """
    images, classes, count = scores.lens
    arguments, buffer = Arguments(), CodeBuffer()
    for name, tensor in (("boxes", boxes), ("scores", scores), *((f"limit{k}", t) for k, t in enumerate(limits))):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    for name, dtype in (("picked", "int64"), ("counts", "int64"), ("dropped", "bool")):
        arguments.pointer(f"p_{name}", name, dtype)
    arguments.integers(classes=classes, count=count, room=room)
    for name, tensor, places in (
        ("box", boxes, ("image", "one", "side")),
        ("score", scores, ("image", "class", "one")),
    ):
        for place, stride in zip(places, tensor.strides):
            arguments.integer(f"{name}_{place}", stride)
    buffer.line(*arguments.bind())
    buffer.line(
        "row = block_index(0)",
        "image = idiv(row, classes)",
        "r_boxes = offset(p_boxes, image * box_image)",
        "r_scores = offset(p_scores, image * score_image + (row - image * classes) * score_class)",
        "r_dropped = offset(p_dropped, row * count)",
        "rounds = imin(cast_int64(load_scalar(p_limit0, 0)), room)",
        f"overlap = {'cast_float64(load_scalar(p_limit1, 0))' if len(limits) > 1 else 'const_float64(0.0, 0)'}",
    )
    order = Order(scores.type, greatest=True, nan_first=False)
    own_boxes = f"for j in range(thread_index(0), count, {THREADS}):"
    left = "if not load_scalar(r_dropped, j):"
    with buffer.block(own_boxes):
        score = buffer.emit("cast_float64(load_scalar(r_scores, j * score_one))")
        known = f"logical_not(isnan({score}))"
        if len(limits) > 2:
            known = f"gt({score}, cast_float64(load_scalar(p_limit2, 0)))"
        buffer.line(f"store_scalar(r_dropped, j, logical_not({known}))")
    buffer.line("found = 0")
    with buffer.block("while found < rounds:"):
        buffer.line(f"best = const_{order.dtype}({order.least}, 0)")
        buffer.line("place = count")
        with buffer.block(own_boxes), buffer.block(left):
            key = order.emit(buffer, "load_scalar(r_scores, j * score_one)")
            with buffer.block(f"if gt({key}, best) or place == count:"):
                buffer.line(f"best = {key}")
                buffer.line("place = j")
        join_first(buffer, order, THREADS, THREADS)
        with buffer.block("if place == count:"):
            buffer.line("break")
        with buffer.block("if thread_index(0) == 0:"):
            buffer.line("store_scalar(p_picked, row * room + found, place)")
        buffer.line("found = found + 1")
        _corners(buffer, center_point_box, "best", "place")
        with buffer.block(own_boxes), buffer.block(left):
            _corners(buffer, center_point_box, "own", "j")
            _drop(buffer)
    with buffer.block("if thread_index(0) == 0:"):
        buffer.line("store_scalar(p_counts, row, found)")
    moved, flops = boxes.footprint + scores.footprint + 8 * images * classes * room, prod(scores.lens) * room
    name, rows = "nonmaxsuppression_kernel", images * classes
    return gpu_launch(name, buffer.lines, arguments, rows, THREADS, moved, flops, origin)


def rows_launch(images: int, classes: int, room: int, length: int, origin: str = "") -> Launch:
    """Return the launch that writes the result's rows (image, class, box) of the boxes selected by
    `suppression_launch`.

    Operands: ``picked`` and ``counts``; int64 ``out`` [length, 3], zero-padded; ``total`` [1], the number of rows.
    """
    arguments, buffer = Arguments(), CodeBuffer()
    for name in ("picked", "counts", "out", "total"):
        arguments.pointer(f"p_{name}", name, "int64")
    arguments.integers(classes=classes, room=room, last=images * classes - 1, length=length)
    buffer.line(*arguments.bind())
    buffer.line(
        "row = block_index(0)",
        "image = idiv(row, classes)",
        "own = load_scalar(p_counts, row)",
        "start = 0",
    )
    with buffer.block(f"for k in range(imod(thread_index(0), {WARP}), row, {WARP}):"):
        buffer.line("start = start + load_scalar(p_counts, k)")
    lanes = WARP
    while lanes > 1:
        lanes //= 2
        buffer.line(f"start = start + shuffle_xor(start, {lanes})")
    with buffer.block(f"for j in range(thread_index(0), imin(own, length - start), {THREADS}):"):
        buffer.line("store_scalar(p_out, (start + j) * 3, image)")
        buffer.line("store_scalar(p_out, (start + j) * 3 + 1, row - image * classes)")
        buffer.line("store_scalar(p_out, (start + j) * 3 + 2, load_scalar(p_picked, row * room + j))")
    with buffer.block("if row == last:"):
        with buffer.block("if thread_index(0) == 0:"):
            buffer.line("store_scalar(p_total, 0, start + own)")
        with buffer.block(f"for j in range((start + own) * 3 + thread_index(0), length * 3, {THREADS}):"):
            buffer.line("store_scalar(p_out, j, 0)")
    name, rows = "nonmaxsuppression_rows_kernel", images * classes
    return gpu_launch(name, buffer.lines, arguments, rows, THREADS, 8 * (4 * length + rows), origin=origin)


def _corners(buffer: CodeBuffer, center_point_box: bool, name: str, place: str) -> None:
    """Emit the sides ``<name>_<end>_<axis>`` (float64) of a box, and ``<name>_area``."""

    def side(k: int) -> str:
        return f"cast_float64(load_scalar(r_boxes, {place} * box_one + {k} * box_side))"

    for axis, k in (("y", 0), ("x", 1)):
        if center_point_box:
            buffer.line(f"centre = {side(1 - k)}")
            buffer.line(f"half = mul({side(3 - k)}, 0.5)")
            buffer.line("first = sub(centre, half)")
            buffer.line("second = add(centre, half)")
        else:
            buffer.line(f"first = {side(k)}")
            buffer.line(f"second = {side(k + 2)}")
        buffer.line(f"{name}_low_{axis} = min(first, second)")
        buffer.line(f"{name}_high_{axis} = max(first, second)")
    lengths = (f"sub({name}_high_{axis}, {name}_low_{axis})" for axis in "yx")
    buffer.line(f"{name}_area = mul({', '.join(lengths)})")


def _drop(buffer: CodeBuffer) -> None:
    """Emit the removal of box ``j``, whose corners are known, if it overlaps the best box."""
    sides = []
    for axis in "yx":
        high, low = (f"{f}(best_{end}_{axis}, own_{end}_{axis})" for f, end in (("min", "high"), ("max", "low")))
        sides.append(f"max(sub({high}, {low}), 0.0)")
    buffer.line(f"common = mul({', '.join(sides)})")
    buffer.line("union = sub(add(best_area, own_area), common)")
    overlaps = "logical_and(gt(union, 0.0), gt(div(common, union), overlap))"
    buffer.line(f"dropped = {overlaps}")
    with buffer.block("if dropped or j == place:"):
        buffer.line("store_scalar(r_dropped, j, True)")


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
