"""Resizing and sampling of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder
from .convolution import image
from .registry import step

__all__ = []

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@step(2)
def resize(b: Builder) -> Any:
    """Exact ratios, or lengths, that keep coordinates away from rounding."""
    x = image(b, lambda v: v.rank == 4 and v.finite and (v.floating or v.type == np.uint8))
    if x.rank != 4 or not x.finite:
        return None
    mode = b.pick(("nearest", "linear", "cubic"))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": b.pick(COORDINATES)}
    if mode == "nearest":
        attributes["nearest_mode"] = b.pick(NEAREST)
    if mode == "cubic" and b.chance(2):
        attributes.update(cubic_coeff_a=-0.5, exclude_outside=b.integer(0, 1))
    if mode == "linear" and x.floating and b.opset >= 18 and b.chance(3):
        attributes["antialias"] = 1
    factors = [1.0, 1.0, *(b.pick((0.5, 1.0, 2.0, 3.0)) for _ in range(2))]
    lens = [int(n * f) for n, f in zip(x.lens, factors)]
    if 0 in lens or not b.shape_elements(*lens):
        return None
    if b.chance(2):
        return b.node("Resize", [x, None, None, b.ints(lens)], **attributes)
    return b.node("Resize", [x, None, b.constant(factors, np.float32)], **attributes)


@step()
def grid_sample(b: Builder) -> Any:
    x = image(b, lambda v: v.rank == 4 and v.type == np.float32 and v.finite)
    if x.rank != 4 or b.opset < 16 or not x.finite:
        return None
    grid = b.constant(b.rng.uniform(-1.2, 1.2, (x.lens[0], b.integer(1, 4), b.integer(1, 4), 2)), np.float32)
    names = ("linear", "nearest", "cubic") if b.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return b.node(
        "GridSample", [x, grid], mode=b.pick(names), padding_mode=b.pick(("zeros", "border", "reflection")),
        align_corners=b.integer(0, 1),
    )  # fmt: skip
