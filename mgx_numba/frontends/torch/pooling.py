"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.dim import Dim, known_equal
from ...core.shape import row_major_strides
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ..sampling import window_sums, windows
from .builder import AtenBuilder, rank
from .convolution import spread
from .node import AtenNode
from .registry import register
from .types import Lens, Results, Sizes


def _axes_of(node: AtenNode) -> int:
    """Return the number of spatial axes, which the operator's name ends in."""
    return next(int(c) for c in node.base if c.isdigit())


def _batched(g: AtenBuilder, x: Instruction, count: int) -> tuple[Instruction, bool]:
    """Return ``x`` with a batch axis, and whether it was added."""
    alone = rank(x) == count + 1
    return (g.unsqueeze(x, [0]) if alone else x), alone


@register("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Results:
    """Emit the largest element of each window, and perhaps its position."""
    count = _axes_of(node)
    x, alone = _batched(g, x, count)
    kernel = spread(kernel, count)
    window: dict[str, Any] = {
        "lengths": kernel,
        "stride": spread(stride, count) if stride or stride == 0 else kernel,
        "padding": spread(padding, count),
        "dilations": spread(dilation, count),
    }
    y = g.op("pooling", x, mode="max", ceil_mode=ceil_mode, **window)
    results = [g.squeeze(y, [0]) if alone else y]
    if not node.base.endswith("indices"):
        return results[0]
    if node.unused(1):
        return [*results, None]
    if any(isinstance(n, Dim) for n in g.lens(x)):
        raise UnsupportedError("positions of max pooling need fixed lengths")
    places = _positions(g, x, [_taps(*numbers) for numbers in zip(g.lens(x)[2:], g.lens(y)[2:], *window.values())])
    return [*results, g.squeeze(places, [0]) if alone else places]


def _taps(n: int, out: int, length: int, stride: int, padding: int, dilation: int) -> np.ndarray:
    """Return the positions [out, length] that windows of an axis read.

    Positions in the padding are the window's nearest element of the axis, which changes neither its largest element,
    nor that element's position, nor the position of its last NaN.
    """
    places = np.arange(out)[:, None] * stride - padding + np.arange(length) * dilation
    valid = (places >= 0) & (places < n)
    first, last = np.where(valid, places, n).min(1, initial=n), np.where(valid, places, -1).max(1, initial=-1)
    return np.clip(np.clip(places, first[:, None], np.maximum(first, last)[:, None]), 0, max(0, n - 1))


def _positions(g: AtenBuilder, x: Instruction, taps: Sequence[np.ndarray]) -> Instruction:
    """Emit the flat positions in each image of the elements that a max pooling takes: a window's last NaN, else the
    first of its largest elements.

    Args:
        x: the images [n, c, spatial...].
        taps: for each spatial axis, the positions [out, taps] that windows read.
    """
    lens = g.lens(x)
    g.limit(prod(at.size for at in taps), "a table of windows")
    places = np.zeros((1, 1), np.int64)
    for at, weight in zip(taps, row_major_strides(lens[2:])):
        both = places[:, None, :, None] + (at * weight)[None, :, None, :]
        places = both.reshape(len(places) * len(at), places.shape[1] * at.shape[1])
    out = (*lens[:2], *map(len, taps))
    if not prod(out):
        return g.literal(np.zeros(out, np.int64))
    windows = g.op("gather", g.reshape(x, (*lens[:2], prod(lens[2:]))), g.literal(places), axis=2)
    chosen = g.op("argmax", windows, axis=3)
    if x.shape.type.is_floating:
        missing = g.op("isnan", windows)
        last = g.op("argmax", g.cast(missing, Type.uint8_type), axis=3, select_last_index=True)
        chosen = g.pointwise("where", g.reduce("reduce_any", missing, [3]), last, chosen)
    rows = g.broadcast(g.literal(places), (*lens[:2], *places.shape))
    return g.reshape(g.op("gather_elements", rows, chosen, axis=3), out)


@register("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Instruction:
    """Emit the mean of each window; ``divisor`` replaces the number of its elements."""
    count = _axes_of(node)
    x, alone = _batched(g, x, count)
    kernel, padding = spread(kernel, count), spread(padding, count)
    steps = spread(stride, count) if stride or stride == 0 else kernel
    if divisor is not None and ceil_mode:  # windows beyond the padding have fewer elements: zeros make up for them
        lens, x = g.lens(x), g.cast(x, node.type)
        out = [-(-(n + 2 * p - k) // s) + 1 for n, p, k, s in zip(lens[2:], padding, kernel, steps)]
        out = [m - ((m - 1) * s >= n + p) for m, n, p, s in zip(out, lens[2:], padding, steps)]
        extra = [max(0, (m - 1) * s + k - n - p) for m, n, p, k, s in zip(out, lens[2:], padding, kernel, steps)]
        x = g.op("pad", x, pads=(0, 0, *padding, 0, 0, *extra), value=0.0)
        padding, ceil_mode = (0,) * count, False
    whole = divisor is not None and node.type.is_integral
    y = g.op(
        "pooling",
        g.cast(x, Type.double_type) if whole else x,
        mode="average",
        lengths=kernel,
        stride=steps,
        padding=padding,
        dilations=(1,) * count,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad or divisor is not None,
    )
    if divisor is not None and whole:  # the sum of a window, then PyTorch's division of integers
        total = g.cast(g.op("nearbyint", g.pointwise("mul", y, g.like(prod(kernel), y))), node.type)
        y = g.pointwise("div", total, g.like(divisor, total))
    elif divisor is not None:
        y = g.pointwise("mul", y, g.like(prod(kernel) / divisor, y))
    return g.squeeze(y, [0]) if alone else y


@register(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip
def adaptive_pool(g: AtenBuilder, node: AtenNode, x: Instruction, size: Sizes) -> Results:
    """Emit mean or greatest element of windows that divide the image into a grid of given lengths."""
    count = _axes_of(node)
    largest = "max" in node.base
    x, alone = _batched(g, x, count)
    lens = g.lens(x)[2:]
    out = [n if m is None else m for n, m in zip(lens, spread(size, count))]
    y = _adaptive(g, x, lens, out, largest)
    y = g.squeeze(y, [0]) if alone else y
    if not largest:
        return y
    if node.unused(1):
        return [y, None]
    if any(isinstance(n, Dim) for n in (*g.lens(x), *out)):
        raise UnsupportedError("positions of adaptive max pooling need fixed lengths")
    places = _positions(g, x, [windows(_grid(n, m))[0] for n, m in zip(lens, out)])
    return [y, g.squeeze(places, [0]) if alone else places]


def _grid(n: int, m: int) -> np.ndarray:
    """Return whether each of ``m`` windows that divide an axis has an element [m, n]."""
    number, at = np.arange(m)[:, None], np.arange(n)
    return (at >= number * n // max(1, m)) & (at < -(-(number + 1) * n // max(1, m)))


def _adaptive(g: AtenBuilder, x: Instruction, lens: Lens, out: Sequence[int], largest: bool) -> Instruction:
    op = "reduce_max" if largest else "reduce_mean"
    if all(known_equal(m, 1) for m in out):
        axes = list(range(2, 2 + len(lens)))
        if largest or any(isinstance(n, Dim) for n in lens):
            return g.reduce(op, x, axes)
        ones = (1,) * len(lens)
        attributes: dict[str, Any] = {"padding": (0,) * len(lens), "stride": ones, "dilations": ones}
        return g.op("pooling", x, mode="average", lengths=tuple(lens), **attributes)
    if any(isinstance(n, Dim) for n in (*lens, *out)):
        raise UnsupportedError("adaptive pooling of an open length is not supported")
    if 0 in out:
        return g.zeros((*g.lens(x)[:2], *out), x.shape.type)
    if all(n % m == 0 for n, m in zip(lens, out)):
        kernel = tuple(n // m for n, m in zip(lens, out))
        attributes = {"padding": (0,) * len(lens), "stride": kernel, "dilations": (1,) * len(lens)}
        return g.op("pooling", x, mode="max" if largest else "average", lengths=kernel, **attributes)
    for axis, (n, m) in enumerate(zip(lens, out), 2):
        assert isinstance(n, int)  # as above
        grid = _grid(n, m)
        if largest:
            x = g.reduce(op, g.op("gather", x, g.literal(windows(grid)[0]), axis=axis), [axis + 1], False)
        else:
            x = window_sums(g, x, axis, grid / grid.sum(1, keepdims=True))
    return x
