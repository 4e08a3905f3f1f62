"""Operators of torchvision: object detectors, and deformable convolution."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...graph.instruction import Instruction
from ..sampling import deformable
from .builder import AtenBuilder
from .node import AtenNode
from .registry import register


@register("torchvision::nms")
def nms(g: AtenBuilder, node: AtenNode, boxes: Instruction, scores: Instruction, iou_threshold: float) -> Instruction:
    """Emit the boxes [n, 4] that no box of a higher score overlaps by more than a threshold, best first."""
    every = g.literal(np.int64(np.iinfo(np.int64).max))
    found = g.op(
        "nonmaxsuppression",
        g.unsqueeze(g.cast(boxes, Type.float_type), [0]),
        g.unsqueeze(g.cast(scores, Type.float_type), [0, 1]),
        every,
        g.literal(np.float32(iou_threshold)),
        use_dyn_output=True,
    )
    return g.squeeze(g.slice(found, 1, 2, 3), [1])


@register("torchvision::roi_align")
def roi_align(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    rois: Instruction,
    spatial_scale: float,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Instruction:
    """Emit regions [r, 5] (image, x1, y1, x2, y2) pooled from bilinear samples."""
    return g.op(
        "roialign",
        x,
        g.slice(rois, 1, 1, 5),
        g.cast(g.squeeze(g.slice(rois, 1, 0, 1), [1]), Type.int64_type),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        output_height=height,
        output_width=width,
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=spatial_scale,
    )


@register("torchvision::deform_conv2d")
def deform_conv2d(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    w: Instruction,
    offset: Instruction,
    mask: Instruction,
    bias: Instruction,
    *numbers: int,
) -> Instruction:
    """Emit a deformable convolution plus a bias.

    Args:
        numbers: strides, paddings and dilations of both axes, the numbers of groups and of groups of offsets, and
            whether the mask counts.
    """
    group, offset_groups, use_mask = numbers[6:]
    steps = numbers[:2], numbers[2:4], numbers[4:6]
    y = deformable(g, x, w, offset, mask if use_mask else None, *steps, group, offset_groups)
    return g.op("add", y, g.broadcast_axis(bias, 1, y))
