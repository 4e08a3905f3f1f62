"""Selection of largest elements, and operators of object detectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from ...ops.base import make_op
from .builder import Builder, rank
from .node import Node
from .registry import register


@register("TopK")
def topk(g: Builder, node: Node, x: Instruction, k: Instruction | None = None) -> list[Instruction]:
    """Emit values and positions of the largest or smallest elements; ``k`` is an attribute before operator set 10."""
    count = g.int_value(k, "K") if k is not None else node.get_int("k")
    axis = g.axis(node.get_int("axis", -1), rank(x))
    both = g.op("topk", x, k=count, axis=axis, largest=node.get_bool("largest", True))
    return [g.op("get_tuple_elem", both, index=0), g.op("get_tuple_elem", both, index=1)]


@register("NonZero")
def nonzero(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the positions of nonzero elements: a literal if known, else with a dynamic number of columns.

    There is one row per axis, so none for a scalar, as in the standard (ONNX Runtime returns one row).
    """
    value = g.constants.value(x)
    if value is not None:
        found = np.stack(np.nonzero(value)) if rank(x) else np.zeros((0, np.count_nonzero(value)))
        return g.literal(found.astype(np.int64))
    places = g.op("nonzero", x, use_dyn_output=True)
    return g.slice(places, 0, 0, 0) if rank(x) == 0 else places


@register("Unique")
def unique(g: Builder, node: Node, x: Instruction) -> Sequence[Instruction]:
    """Emit distinct values, first positions, inverse positions and counts; folded for a constant input."""
    axis = g.axis(node.get_int("axis"), rank(x)) if node.has("axis") else None
    op = make_op("unique", axis=axis, sorted=node.get_bool("sorted", True))
    value = g.constants.value(x)
    if value is not None:
        return [g.literal(v) for v in op.compute(op.compute_shape([x.shape]), [value])]
    result = g.op(op, x)
    return [g.op("get_tuple_elem", result, index=k) for k in range(4)]


@register("MaxRoiPool")
def max_roi_pool(g: Builder, node: Node, x: Instruction, rois: Instruction) -> Instruction:
    """Emit the largest pixel of each cell of each region."""
    pooled = tuple(node.get_ints("pooled_shape"))
    return g.op("max_roi_pool", x, rois, pooled_shape=pooled, spatial_scale=node.get_float("spatial_scale", 1.0))


@register("NonMaxSuppression")
def non_max_suppression(
    g: Builder,
    node: Node,
    boxes: Instruction,
    scores: Instruction,
    most: Instruction | None = None,
    overlap: Instruction | None = None,
    least: Instruction | None = None,
) -> Instruction:
    """Emit the selected rows (image, class, box), a dynamic number."""
    limits = [most, overlap, least]
    while limits and limits[-1] is None:
        limits.pop()
    defaults = (g.literal(np.int64(0)), g.literal(np.float32(0)), g.literal(np.float32(-np.inf)))
    given = [value if value is not None else default for value, default in zip(limits, defaults, strict=False)]
    return g.op(
        "nonmaxsuppression",
        boxes,
        scores,
        *given,
        center_point_box=node.get_bool("center_point_box"),
        use_dyn_output=True,
    )


@register("RoiAlign")
def roi_align(g: Builder, node: Node, x: Instruction, rois: Instruction, batch: Instruction) -> Instruction:
    """Emit regions pooled from bilinear samples; half-pixel coordinates are the default from operator set 16 on."""
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    mode = node.get_choice("mode", ("avg", "max"), "avg")
    size = [node.get_int(name, 1) for name in ("output_height", "output_width")]
    if min(size) < 1 or node.get_int("sampling_ratio", 0) < 0:
        raise ParseError(f"output size {size} and sampling_ratio must be positive")
    return g.op(
        "roialign",
        x,
        rois,
        g.convert(batch, Type.int64_type),
        coordinate_transformation_mode=node.get_choice(
            "coordinate_transformation_mode", ("half_pixel", "output_half_pixel"), default
        ),
        mode={"avg": "average", "max": "max"}[mode],
        output_height=size[0],
        output_width=size[1],
        sampling_ratio=node.get_int("sampling_ratio", 0),
        spatial_scale=node.get_float("spatial_scale", 1.0),
    )
