"""Non-maximum suppression of boxes (ONNX ``NonMaxSuppression``), one class after the other.

The boxes of a class whose score is high enough are sorted by score (`row_sort`). One after the other is compared, in
float64, with those kept so far, and kept unless it overlaps one of them too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import Length, SharedLength, ceil_div, is_symbolic
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text, load_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty
from .row_sort import counters, key_dtype, key_lines, sort_lines, sort_pitch

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
        boxes: the boxes.
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
            f"store_where(places, found, add(iota_int32({wide}), cast_int32(c)), mask)",
            "found += store_where(keys, found, key, mask)",
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
    one_row = [
        "image = idiv(row, classes)",
        "r_scores = offset(p_scores, image * score_image + (row - image * classes) * score_class)",
        "r_boxes = offset(p_boxes, image * box_image)",
        "found = 0",
        *vector_loop(wide, candidates, first="0", last="count"),
        "kept = 0",
        "if found > 0:",
        *indent(
            [
                *sort_lines(key, "found"),
                "e = 0",
                "while e < found and kept < keep:",
                *indent(one_box),
            ]
        ),
        "store_scalar(p_counts, row, kept)",
    ]
    task = [
        "keys = offset(p_keys, task * 2 * pitch)",
        "places = offset(p_places, task * 2 * pitch)",
        f"planes = offset(p_planes, task * {len(PLANES)} * kept_pitch)",
        "for row in range(task * batch, imin(rows, task * batch + batch)):",
        *indent(one_row),
    ]
    text = kernel_text([*arguments.bind(), *_limit_lines(limits), counters(key), *for_tasks(task)])
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
