"""Operators of object detectors: non-maximum suppression of boxes, and region pooling (ONNX ``RoiAlign``).

Suppression takes one class after the other. The boxes of a class whose score is high enough are sorted by score
(`row_sort`): first only the best of many, all of them if too few of these are kept. Each box is compared, in float64,
with the boxes kept so far, and kept unless it overlaps one of them too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from ....core.dim import Length, SharedLength, ceil_div, is_symbolic
from ....core.types import Type
from ....ops.detection import RoiAlign
from ....ops.pooling import PoolingMode
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...printer import CodeBuffer
from ...problems.cluster import Tensor
from ...resampling import neighbours, samples
from ...statements import (
    cast_text,
    const_text,
    dtype_name,
    for_tasks,
    indent,
    kernel_text,
    load_text,
    store_text,
    vector_loop,
)
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty
from .checks import Checks
from .row_sort import counters, key_dtype, key_lines, selected_lines, sort_lines, sort_pitch

SORTED_OF_KEPT = 4
"""Boxes that are sorted at first for each one to keep. Zen 4: 4,960 boxes of which 20 are kept take 40 us if all are
sorted."""
PLANES = ("y1", "x1", "y2", "x2", "area")
"""Float64 planes of scratch memory: what is known of each box kept."""


def kept_pitch(room: Length) -> SharedLength:
    """Return the elements of a plane of scratch memory for up to ``room`` boxes: whole vectors are read."""
    return room + host.lanes("float64")


def suppression_launch(
    center_point_box: bool,
    boxes: Tensor,
    scores: Tensor,
    limits: Sequence[Tensor],
    room: Length,
    groups: Length,
    origin: str = "",
) -> Launch:
    """Return the launch that finds the boxes to keep of every image and class.

    Operands, all row-major but the first two:

    - ``boxes`` [n, boxes, 4].
    - ``scores`` [n, classes, boxes]; boxes with NaN as score are never kept.
    - ``limit0`` (number of boxes to keep), ``limit1`` (overlap), ``limit2`` (lowest score), as far as given.
    - int64 ``picked`` [n * classes, room], best first, and ``counts`` [n * classes].
    - scratch memory: ``keys`` [groups, 2, pitch] of `key_dtype` and int32 ``places`` [groups, 2, pitch], with
      `sort_pitch` as pitch; float64 ``planes`` [groups, len(PLANES), pitch], with `kept_pitch`.

    Args:
        center_point_box: boxes are centre and size instead of two corners.
        scores: their scores in each class.
        limits: one-element tensors, at least the first limit.
        room: upper bound of the boxes kept, for any limit.
        groups: number of tasks; a task handles several classes.
        origin: printed instruction.
    """
    images, classes, count = scores.lens
    rows, lanes, wide = images * classes, host.lanes("float64"), host.lanes("float32") * 2
    storage, compute, key = dtype_name(scores.type), dtype_name(scores.type.compute), key_dtype(scores)
    arguments = Arguments()
    arguments.pointer("p_boxes", "boxes", dtype_name(boxes.type))
    arguments.pointer("p_scores", "scores", storage)
    for k, limit in enumerate(limits):
        arguments.pointer(f"p_limit{k}", f"limit{k}", dtype_name(limit.type))
    for name, dtype in (("picked", "int64"), ("counts", "int64"), ("keys", key), ("places", "int32")):
        arguments.pointer(f"p_{name}", name, dtype)
    arguments.pointer("p_planes", "planes", "float64")
    arguments.integers(rows=rows, batch=ceil_div(rows, groups), classes=classes, count=count, room=room)
    arguments.integers(pitch=sort_pitch(count), kept_pitch=kept_pitch(room))
    arguments.integers(score_image=scores.strides[0], score_class=scores.strides[1])
    arguments.integers(box_image=boxes.strides[0], box_step=boxes.strides[1], box_side=boxes.strides[2])
    step = arguments.step("score_step", scores.strides[2])

    def candidates(left: str) -> list[str]:
        value = cast_text(load_text("r_scores", "c", scores.strides[2], step, wide, left), storage, compute)
        mask = f"gt({cast_text('score', compute, 'float64')}, lowest)" if len(limits) > 2 else "eq(score, score)"
        mask = f"logical_and({mask}, lane_mask(left, {wide}))" if left else mask
        found = [
            *key_lines("score", scores, wide, largest=True),
            f"store_where(places, ready, add(iota_int32({wide}), cast_int32(c)), mask)",
            "ready += store_where(keys, ready, key, mask)",
        ]
        return [f"score = {value}", f"mask = {mask}", "if reduce_or(mask):", *indent(found)]

    one_box = [
        "box = cast_int64(load_scalar(places, turn * pitch + e))",
        "e += 1",
        *_box(boxes, center_point_box),
        "dead = False",
        "c = 0",
        "while c < kept and not dead:",
        *indent([*_overlap(lanes), f"c += {lanes}"]),
        "if not dead:",
        *indent(
            [
                *(f"store_scalar(planes, {k} * kept_pitch + kept, {name})" for k, name in enumerate(PLANES)),
                "store_scalar(p_picked, row * room + kept, box)",
                "kept += 1",
            ]
        ),
    ]
    attempt = [
        "ready = 0",
        *vector_loop(wide, candidates, first="0", last="count"),
        "found = ready",
        "if attempt == 0:",
        *indent(selected_lines(key, "ready", f"({SORTED_OF_KEPT} * keep)")),
        "kept = 0",
        "if found > 0:",
        *indent([*sort_lines(key), "e = 0", "while e < found and kept < keep:", *indent(one_box)]),
    ]
    one_row = [
        "image = idiv(row, classes)",
        "r_scores = offset(p_scores, image * score_image + (row - image * classes) * score_class)",
        "r_boxes = offset(p_boxes, image * box_image)",
        *(f"{name} = 0" for name in ("ready", "found", "kept")),
        "for attempt in range(2):",
        "    if attempt == 0 or (kept < keep and found < ready):",
        *indent(attempt, 2),
        "store_scalar(p_counts, row, kept)",
    ]
    task = [
        "keys = offset(p_keys, task * 2 * pitch)",
        "places = offset(p_places, task * 2 * pitch)",
        f"planes = offset(p_planes, task * {len(PLANES)} * kept_pitch)",
        "for row in range(task * batch, imin(rows, task * batch + batch)):",
        *indent(one_row),
    ]
    text = kernel_text([*arguments.bind(), *_limit_lines(limits), *counters(key), *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("nonmaxsuppression_kernel", text, origin),
        args=arguments.values,
        # Without boxes nothing is kept; symbolic lengths may be 0, and then the counts are still stored.
        geometry=TaskRange(tasks_unless_empty(groups, [rows] if is_symbolic(count) else [rows, count])),
        flops=prod(scores.lens),
        bytes=boxes.footprint + scores.footprint,
    )


def suppression_rows_launch(
    rows: Length, classes: Length, room: Length, filled: Length | None = None, origin: str = ""
) -> Launch:
    """Return the launch that makes the result's rows (image, class, box) from the boxes picked; one task.

    Operands: ``picked`` and ``counts`` as of `suppression_launch`; int64 ``out`` with room for all rows; without
    ``filled`` their number ``count`` [1].

    Args:
        rows: images times classes.
        classes: number of classes.
        room: length of the rows of ``picked``.
        filled: number of rows of ``out``, those behind the last one found filled with zeros; None: they are not.
        origin: printed instruction.
    """
    arguments = Arguments()
    for name in ("picked", "counts", "out", *(["count"] if filled is None else [])):
        arguments.pointer(f"p_{name}", name, "int64")
    arguments.integers(rows=rows, classes=classes, room=room)
    end = ["store_scalar(p_count, 0, found)"]
    if filled is not None:
        arguments.integers(filled=filled)
        end = ["for k in range(3 * found, 3 * filled):", "    store_scalar(p_out, k, 0)"]
    one_row = [
        "image = idiv(row, classes)",
        "for k in range(load_scalar(p_counts, row)):",
        "    store_scalar(p_out, 3 * found, image)",
        "    store_scalar(p_out, 3 * found + 1, row - image * classes)",
        "    store_scalar(p_out, 3 * found + 2, load_scalar(p_picked, row * room + k))",
        "    found += 1",
    ]
    task = ["found = 0", "for row in range(rows):", *indent(one_row), *end]
    return Launch(
        kernel=cpu_kernel("suppression_rows_kernel", kernel_text([*arguments.bind(), *for_tasks(task)]), origin),
        args=arguments.values,
        geometry=TaskRange(1),
    )


def _limit_lines(limits: Sequence[Tensor]) -> list[str]:
    """Return lines that set ``keep`` (most boxes), ``overlap``, and ``lowest`` (score) if it is given."""
    lines = ["keep = imin(room, cast_int64(load_scalar(p_limit0, 0)))"]
    overlap = "cast_float64(load_scalar(p_limit1, 0))" if len(limits) > 1 else "0.0"
    lines.append(f"overlap = {overlap}")
    if len(limits) > 2:
        lines.append("lowest = cast_float64(load_scalar(p_limit2, 0))")
    return lines


def _box(boxes: Tensor, center: bool) -> list[str]:
    """Return lines that set the corners and the area of box ``box``, by the names of `PLANES`."""
    sides = [f"load_scalar(r_box, {k} * box_side)" for k in range(4)]
    a, b, c, d = (cast_text(side, dtype_name(boxes.type), "float64") for side in sides)
    if center:
        corners = [f"h = {d} / 2", f"w = {c} / 2", f"y = {b}", f"x = {a}"]
        corners += ["ya = y - h", "yb = y + h", "xa = x - w", "xb = x + w"]
    else:
        corners = [f"ya = {a}", f"xa = {b}", f"yb = {c}", f"xb = {d}"]
    return [
        "r_box = offset(r_boxes, box * box_step)",
        *corners,
        "y1 = min(ya, yb)",
        "x1 = min(xa, xb)",
        "y2 = max(ya, yb)",
        "x2 = max(xa, xb)",
        "area = (y2 - y1) * (x2 - x1)",
    ]


def _overlap(lanes: int) -> list[str]:
    """Return lines that set ``dead`` if the box overlaps one of the boxes kept from ``c`` on too much."""
    y1, x1, y2, x2, area = (f"load(planes, {k} * kept_pitch + c, {lanes})" for k in range(len(PLANES)))
    return [
        f"high = max(0, sub(min({y2}, y2), max({y1}, y1)))",
        f"wide = max(0, sub(min({x2}, x2), max({x1}, x1)))",
        "common = mul(high, wide)",
        f"union = sub(add({area}, area), common)",
        "over = logical_and(gt(union, 0), gt(div(common, union), overlap))",
        f"dead = reduce_or(logical_and(over, lane_mask(kept - c, {lanes})))",
    ]


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


def max_regions_launch(x: Tensor, rois: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch of `ops.MaxRoiPool` over floats.

    Operands: ``x`` [n, c, h, w], ``rois`` [regions, 5], float32 ``scale`` [1] (spatial scale), ``out`` [regions, c,
    *cells]. Corners are computed in float32. An image index out of range is a fault of the call. It is fastest with
    channels that are contiguous in ``x``.
    """
    arguments = Arguments()
    for name, tensor in (("x", x), ("rois", rois), ("out", out)):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    arguments.pointer("p_scale", "scale", "float32")
    arguments.integers(images=x.lens[0], last=x.lens[1], y_length=x.lens[2], x_length=x.lens[3])
    arguments.integers(image_step=x.strides[0], y_step=x.strides[2], x_step=x.strides[3])
    arguments.integers(region_step=rois.strides[0], side_step=rois.strides[1], y_cells=out.lens[2], x_cells=out.lens[3])
    arguments.integers(out_region=out.strides[0], out_line=out.strides[2], out_column=out.strides[3])
    steps = [arguments.step(f"{name}_channel", t.strides[1]) for name, t in (("x", x), ("out", out))]
    checks = Checks(arguments, [True])
    storage, compute = dtype_name(x.type), dtype_name(x.type.compute)
    lanes = host.lanes(compute)

    def side(number: int) -> str:
        place = f"region * region_step + {number} * side_step"
        return cast_text(f"load_scalar(p_rois, {place})", dtype_name(rois.type), "float32")

    def corner(name: str, number: int) -> list[str]:
        """Return lines that set a corner, rounded, halves away from 0."""
        return [
            f"v = mul({side(number)}, scale)",
            "far = cast_int64(floor(add(max(v, sub(cast_float32(0), v)), cast_float32(0.5))))",
            f"{name} = far",
            "if v < cast_float32(0):",
            f"    {name} = 0 - far",
        ]

    def cells(axis: str) -> list[str]:
        """Return lines that set the first pixel, and the end of the pixels, of cell ``<axis>_cell``."""
        size = f"div(cast_float32(imax({axis}_last - {axis}_first + 1, 1)), cast_float32({axis}_cells))"
        return [
            f"size = {size}",
            f"begin_at = cast_int64(floor(mul(cast_float32({axis}_cell), size))) + {axis}_first",
            f"end_at = cast_int64(ceil(mul(cast_float32({axis}_cell + 1), size))) + {axis}_first",
            f"{axis}_begin = imin(imax(begin_at, 0), {axis}_length)",
            f"{axis}_end = imin(imax(end_at, 0), {axis}_length)",
        ]

    def largest(left: str) -> list[str]:
        value = cast_text(load_text("q", "c", x.strides[1], steps[0], lanes, left), storage, compute)
        pixels = ["q = offset(p_x, image * image_step + y * y_step + j * x_step)", f"best = max(best, {value})"]
        lines = ["for y in range(y_begin, y_end):", "    for j in range(x_begin, x_end):", *indent(pixels, 2)]
        stored = cast_text(f"where(some, best, {const_text(compute, 0.0, lanes)})", compute, storage)
        store = store_text("r_out", "c", out.strides[1], steps[1], stored, left)
        return [f"best = {const_text(compute, -inf, lanes)}", *lines, store]

    cell = [
        *cells("x"),
        "some = y_end > y_begin and x_end > x_begin",
        "r_out = offset(p_out, region * out_region + y_cell * out_line + x_cell * out_column)",
        *vector_loop(lanes, largest, first="0"),
    ]
    task = [
        "region = idiv(task, y_cells)",
        "y_cell = task - region * y_cells",
        *checks.scalar(0, "image", f"cast_int64({side(0)})", Type.uint64_type, "images"),
        *corner("x_first", 1),
        *corner("y_first", 2),
        *corner("x_last", 3),
        *corner("y_last", 4),
        *cells("y"),
        "for x_cell in range(x_cells):",
        *indent(cell),
    ]
    prologue = ["scale = load_scalar(p_scale, 0)", *checks.begin()]
    text = kernel_text([*arguments.bind(), *prologue, *for_tasks(task), *checks.end()])
    return Launch(
        kernel=cpu_kernel("max_roi_pool_kernel", text, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(out.lens[0] * out.lens[2], [out.lens[0], out.lens[1]])),
        bytes=x.footprint + rois.footprint + out.footprint,
        checks=(f"{x.lens[0]} images",),
    )
