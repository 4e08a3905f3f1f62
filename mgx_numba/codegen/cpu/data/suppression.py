"""Non-maximum suppression of boxes (ONNX ``NonMaxSuppression``), one class after the other.

The boxes of a class whose score is high enough go to scratch memory, in float64. Repeatedly the best box is kept, and
one pass over the other boxes drops those that overlap it too much. A dropped score becomes NaN, which never wins a
comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ....core.dim import Length, ceil_div, is_symbolic, known_in
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...statements import cast_text, dtype_name, for_tasks, indent, kernel_text, load_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import tasks_unless_empty

PLANES = 6
"""Float64 planes of scratch memory: score, the four sides, area."""
CORNERS = ("y1", "x1", "y2", "x2")


def scratch_pitch(boxes: Length) -> Any:
    """Return the elements per plane of scratch memory."""
    return boxes + 2 * host.lanes("float64")


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
    - scratch memory: float64 ``planes`` [groups, PLANES, pitch] and int64 ``order`` [groups, pitch]; `scratch_pitch`
      returns the pitch.

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
    rows, lanes = images * classes, host.lanes("float64")
    wide = host.lanes("float32") * 2
    score_dtype = dtype_name(scores.type)
    arguments = Arguments()
    arguments.pointer("p_boxes", "boxes", dtype_name(boxes.type))
    arguments.pointer("p_scores", "scores", score_dtype)
    for k, limit in enumerate(limits):
        arguments.pointer(f"p_limit{k}", f"limit{k}", dtype_name(limit.type))
    for name in ("picked", "counts", "order"):
        arguments.pointer(f"p_{name}", name, "int64")
    arguments.pointer("p_planes", "planes", "float64")
    for name, value in (
        ("rows", rows),
        ("batch", ceil_div(rows, groups)),
        ("classes", classes),
        ("count", count),
        ("room", room),
        ("pitch", scratch_pitch(count)),
        ("score_image", scores.strides[0]),
        ("score_class", scores.strides[1]),
        ("box_image", boxes.strides[0]),
        ("box_step", boxes.strides[1]),
        ("box_side", boxes.strides[2]),
    ):
        arguments.integer(name, value)
    step = arguments.step("score_step", scores.strides[2])
    limited = len(limits) > 2

    def candidates(left: str) -> list[str]:
        one = _append(boxes, scores, step, limited, center_point_box)
        each = [f"for e in range({left or wide}):", *indent(one)]
        if left or not limited:
            return each
        value = cast_text(load_text("r_scores", "c", scores.strides[2], step, wide), score_dtype, "float64")
        return [f"if reduce_or(gt({value}, lowest)):", *indent(each)]

    def scan(suppress: bool) -> list[str]:
        """Return one pass over the candidates that sets ``top`` and ``first``: the best remaining score and its
        place."""
        drop = _drop(lanes) if suppress else []
        return [
            f"best = const_float64(-INF, {lanes})",
            f"place = const_int64(0, {lanes})",
            "c = 0",
            "while c < found:",
            *indent(
                [
                    f"s = load(planes, c, {lanes})",
                    *drop,
                    "take = gt(s, best)",
                    "best = where(take, s, best)",
                    f"place = where(take, add(iota_int64({lanes}), c), place)",
                    f"c += {lanes}",
                ],
            ),
            "first = reduce_argmax(best, place)",
            "top = reduce_max(best)",
        ]

    one_row = [
        "image = idiv(row, classes)",
        "r_scores = offset(p_scores, image * score_image + (row - image * classes) * score_class)",
        "r_boxes = offset(p_boxes, image * box_image)",
        "found = 0",
        *vector_loop(wide, candidates, first="0", last="count"),
        f"store(planes, found, const_float64(NAN, {lanes}))",
        *scan(suppress=False),
        "kept = 0",
        "while kept < keep and top > -INF:",
        *indent(
            [
                "store_scalar(p_picked, row * room + kept, load_scalar(order, first))",
                "kept += 1",
                "store_scalar(planes, first, NAN)",
                *(f"b_{side} = load_scalar(planes, {k + 1} * pitch + first)" for k, side in enumerate(CORNERS)),
                "b_area = load_scalar(planes, 5 * pitch + first)",
                *scan(suppress=True),
            ],
        ),
        "store_scalar(p_counts, row, kept)",
    ]
    task = [
        "planes = offset(p_planes, task * 6 * pitch)",
        "order = offset(p_order, task * pitch)",
        "for row in range(task * batch, imin(rows, task * batch + batch)):",
        *indent(one_row),
    ]
    text = kernel_text([*arguments.bind(), *_limit_lines(limits), *for_tasks(task)])
    return Launch(
        kernel=cpu_kernel("nonmaxsuppression_kernel", text, origin),
        args=arguments.values,
        # Without boxes nothing is kept; symbolic lengths may be 0, and then the counts are still stored.
        geometry=TaskRange(tasks_unless_empty(groups, [rows] if is_symbolic(count) else [rows, count])),
        flops=prod(scores.lens),
        bytes=boxes.footprint + scores.footprint,
    )


def _limit_lines(limits: Sequence[Tensor]) -> list[str]:
    lines = ["keep = imin(room, cast_int64(load_scalar(p_limit0, 0)))"]
    overlap = "cast_float64(load_scalar(p_limit1, 0))" if len(limits) > 1 else "0.0"
    lines.append(f"overlap = {overlap}")
    if len(limits) > 2:
        lines.append("lowest = cast_float64(load_scalar(p_limit2, 0))")
    return lines


def _append(boxes: Tensor, scores: Tensor, step: str, limited: bool, center: bool) -> list[str]:
    """Return lines that append box ``c + e`` to the candidates if its score is high enough."""
    at = f"(c + e) * {step}" if step else "0" if known_in(scores.strides[2], 0) else "c + e"
    score = cast_text(f"load_scalar(r_scores, {at})", dtype_name(scores.type), "float64")
    sides = [f"load_scalar(r_box, {k} * box_side)" for k in range(4)]
    a, b, c, d = (cast_text(side, dtype_name(boxes.type), "float64") for side in sides)
    if center:
        corners = [f"h = {d} / 2", f"w = {c} / 2", f"y = {b}", f"x = {a}"]
        corners += ["ya = y - h", "yb = y + h", "xa = x - w", "xb = x + w"]
    else:
        corners = [f"ya = {a}", f"xa = {b}", f"yb = {c}", f"xb = {d}"]
    planes = ("y1 = min(ya, yb)", "x1 = min(xa, xb)", "y2 = max(ya, yb)", "x2 = max(xa, xb)")
    values = ("y1", "x1", "y2", "x2", "(y2 - y1) * (x2 - x1)")
    return [
        f"score = {score}",
        f"if {'score > lowest' if limited else 'score == score'}:",
        *indent(
            [
                "r_box = offset(r_boxes, (c + e) * box_step)",
                *corners,
                *planes,
                # The lowest finite score replaces minus infinity, which marks that no candidate is left.
                "store_scalar(planes, found, max(-1.7976931348623157e308, score))",
                *(f"store_scalar(planes, {k + 1} * pitch + found, {v})" for k, v in enumerate(values)),
                "store_scalar(order, found, c + e)",
                "found += 1",
            ],
        ),
    ]


def _drop(lanes: int) -> list[str]:
    """Return lines that set the score ``s`` of every candidate that overlaps the kept box too much to NaN."""
    y1, x1, y2, x2, area = (f"load(planes, {k + 1} * pitch + c, {lanes})" for k in range(5))
    return [
        f"high = max(0, sub(min({y2}, b_y2), max({y1}, b_y1)))",
        f"wide = max(0, sub(min({x2}, b_x2), max({x1}, b_x1)))",
        "common = mul(high, wide)",
        f"union = sub(add({area}, b_area), common)",
        "dead = logical_and(gt(union, 0), gt(div(common, union), overlap))",
        f"s = where(dead, const_float64(NAN, {lanes}), s)",
        "store(planes, c, s)",
    ]
