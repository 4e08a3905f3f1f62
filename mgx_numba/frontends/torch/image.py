"""Interpolation and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.dim import Dim, Length, known_equal
from ...core.types import Type
from ...errors import ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.col2im import Col2Im
from ..sampling import SampleAxis, sampled, window_sums
from .builder import AtenBuilder, rank
from .convolution import spread
from .node import AtenNode
from .registry import register
from .types import Lens, Sizes

PADDINGS = ("zeros", "border", "reflection")
"""Padding modes of grid_sampler by number."""
MODES = ("linear", "nearest", "cubic")
"""Interpolation modes of grid_sampler by number."""


def _target(g: AtenBuilder, x: Instruction, size: Lens | None, factors: Sequence[Any]) -> list[Length]:
    """Return the lengths of a result, from its size or from factors."""
    lens = g.lens(x)
    if size is not None:
        return [*lens[:2], *size]
    return [*lens[:2], *(int(n * f) for n, f in zip(lens[2:], factors))]


def _scales(values: Sequence[Any], count: int) -> list[float | None]:
    """Return the factors of an upsampling: a list of them, or one argument for each axis."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        return list(values[0])
    return [*values, *[None] * count][:count]


@register(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip
def nearest(g: AtenBuilder, node: AtenNode, x: Instruction, size: Lens | None, *scales: object) -> Instruction:
    """Emit nearest-neighbour interpolation."""
    exact = "exact" in node.base
    factors = _scales(scales, rank(x) - 2)
    coordinates = "half_pixel" if exact else "asymmetric"
    mode = "round_prefer_ceil" if exact else "floor"
    return _resized(g, x, _target(g, x, size, factors), factors, "nearest", coordinates, mode)


@register("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def interpolated(
    g: AtenBuilder, node: AtenNode, x: Instruction, size: Lens | None, align_corners: bool, *scales: object
) -> Instruction:
    """Emit linear or cubic interpolation."""
    mode = "cubic" if "cubic" in node.base else "linear"
    factors = _scales(scales, rank(x) - 2)
    coordinates = "align_corners" if align_corners else "half_pixel"
    if not align_corners and mode == "linear":
        coordinates = "half_pixel"
    return _resized(g, x, _target(g, x, size, factors), factors, mode, coordinates, "floor")


def _resized(
    g: AtenBuilder,
    x: Instruction,
    target: Sequence[Length],
    factors: Sequence[object],
    mode: str,
    coordinates: str,
    nearest_mode: str,
) -> Instruction:
    lens = g.lens(x)
    attributes: dict[str, Any] = {
        "mode": mode,
        "nearest_mode": nearest_mode,
        "coordinate_transformation_mode": coordinates,
        "cubic_coeff_a": -0.75,
    }
    open_ = any(isinstance(n, Dim) for n in (*lens, *target))
    given = [1.0, 1.0, *(f if f else None for f in factors)]
    scaled = not open_ and all(f is not None for f in given) and coordinates != "align_corners"
    if scaled and all(int(n * f) == m for n, f, m in zip(lens, given, target)):  # type: ignore[operator]
        return g.op("resize", x, scales=tuple(float(f) for f in given), **attributes)  # type: ignore[arg-type]
    return g.op("resize", x, sizes=tuple(target), **attributes)


@register("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def antialiased(
    g: AtenBuilder, node: AtenNode, x: Instruction, size: Lens | None, align_corners: bool, *scales: object
) -> Instruction:
    """Emit interpolation with a filter that widens where the image shrinks: weighted windows of each axis."""
    cubic = "cubic" in node.base
    factors = _scales(scales, 2)
    target = _target(g, x, size, factors)
    if any(isinstance(n, Dim) for n in (*g.lens(x)[2:], *target[2:])):
        raise UnsupportedError("antialiased interpolation of open lengths is not supported")
    wide = x if x.shape.type is Type.double_type else g.convert(x, Type.float_type)
    for axis in (2, 3):
        n, m = g.lens(wide)[axis], target[axis]
        if known_equal(n, m) and not factors[axis - 2]:
            continue
        assert isinstance(m, int)
        wide = window_sums(g, wide, axis, _filter(n, m, align_corners, factors[axis - 2], cubic))
    return g.convert(wide, x.shape.type)


def _filter(n: int, m: int, align_corners: bool, factor: float | None, cubic: bool) -> np.ndarray:
    """Return the weights [m, n] of an axis' antialiased interpolation (ATen's UpSampleKernel.cpp)."""
    scale = ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else 1 / factor if factor else n / m
    half = 2.0 if cubic else 1.0
    support = half * scale if scale >= 1 else half
    weights = np.zeros((m, n))
    for k in range(m):
        centre = scale * (k + 0.5)
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), n)
        distance = np.abs((np.arange(first, last) - centre + 0.5) / max(scale, 1.0))
        if cubic:
            a = -0.5
            near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
            far = ((distance - 5) * distance + 8) * distance * a - 4 * a
            found = np.where(distance < 1, near, np.where(distance < 2, far, 0))
        else:
            found = np.maximum(0, 1 - distance)
        weights[k, first:last] = found / found.sum()
    return weights


@register("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    g: AtenBuilder, node: AtenNode, x: Instruction, grid: Instruction, mode: int, padding: int, align_corners: bool
) -> Instruction:
    """Sample x [n, c, spatial...] at grid [n, out..., axes], whose last axis lists coordinates last axis first."""
    lens, wanted = g.lens(x), g.lens(grid)
    spatial = len(lens) - 2
    if wanted[-1] != spatial:
        raise ShapeError(f"input {list(lens)} and grid {list(wanted)} do not fit")
    flat = g.reshape(grid, (lens[0], prod(wanted[1:-1]), spatial))
    axes, taps = [], []
    for k, length in enumerate(lens[2:]):
        axis = SampleAxis(g, length, PADDINGS[padding], align_corners)
        place = g.squeeze(g.slice(flat, 2, spatial - 1 - k, spatial - k), [2])
        axes.append(axis)
        taps.append(axis.taps(axis.coordinate(place), MODES[mode]))
    total = sampled(g, x, axes, taps)
    return g.reshape(total, (lens[0], lens[1], *wanted[1:-1]))


@register("im2col")
def im2col(
    g: AtenBuilder, node: AtenNode, x: Instruction, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Instruction:
    """Emit the windows of images as columns [n, c * kernel, positions]."""
    alone = rank(x) == 3
    x = g.unsqueeze(x, [0]) if alone else x
    kernel, dilation, padding, stride = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    if any(padding):
        x = g.op("pad", x, pads=(0, 0, *padding, 0, 0, *padding), value=0.0, mode=0)
    n, c, h, w = g.lens(x)
    for axis, size in ((2, h), (4, w)):
        k = axis // 2 - 1
        count = (size - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        taps = g.literal((np.arange(kernel[k]) * dilation[k]).astype(np.int64).reshape(-1, 1))
        starts = g.pointwise("mul", g.iota(count, 1, 2), g.literal(stride[k], Type.int64_type))
        x = g.op("gather", x, g.pointwise("add", taps, starts), axis=axis)
    _, _, kh, oh, kw, ow = g.lens(x)
    y = g.reshape(g.transpose(x, (0, 1, 2, 4, 3, 5)), (n, c * kh * kw, oh * ow))
    return g.squeeze(y, [0]) if alone else y


@register("col2im")
def col2im(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    size: Sequence[int],
    kernel: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Instruction:
    """Add up windows [n, c * kernel, positions] at their places in images."""
    alone = rank(x) == 2
    x = g.unsqueeze(x, [0]) if alone else x
    kernel, dilation, padding, stride = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    steps = [(size[k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in range(2)]
    y = g.op(Col2Im(*map(tuple, (size, kernel, stride, dilation, padding, steps))), x)
    return g.squeeze(y, [0]) if alone else y
