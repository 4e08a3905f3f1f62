"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.dim import Dim, known_equal
from ...core.shape import row_major_strides
from ...errors import UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
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
    places = _positions(g, x, g.lens(y), **window)
    return [*results, g.squeeze(places, [0]) if alone else places]


def _positions(
    g: AtenBuilder,
    x: Instruction,
    out: Sequence[Any],
    lengths: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
) -> Instruction:
    """Emit the flat positions in each image of the elements that a max pooling takes."""
    lens = g.lens(x)
    if any(isinstance(n, Dim) for n in lens) or prod(out[2:]) * prod(lengths) > LARGEST:
        raise UnsupportedError("positions of max pooling need fixed lengths")
    places, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for k, weight in enumerate(row_major_strides(lens[2:])):
        axis = np.arange(out[2 + k])[:, None] * stride[k] - padding[k] + np.arange(lengths[k]) * dilations[k]
        valid = (axis >= 0) & (axis < lens[2 + k])
        places = _outer(places, np.where(valid, axis, 0) * weight, np.add)
        inside = _outer(inside, valid, np.logical_and)
    flat = g.reshape(x, (*lens[:2], prod(lens[2:])))
    windows = g.op("gather", flat, g.literal(places), axis=2)
    lowest = -np.inf if x.shape.type.is_floating else np.iinfo(x.shape.type.numpy).min
    windows = g.pointwise("where", g.literal(inside), windows, g.like(lowest, x))
    rows = g.broadcast(g.literal(places), (*lens[:2], *places.shape))
    return g.reshape(g.op("gather_elements", rows, g.op("argmax", windows, axis=3), axis=3), out)


def _outer(a: np.ndarray, b: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """Combine windows [positions, taps] of two axes into windows of both axes."""
    both = combine(a[:, None, :, None], b[None, :, None, :])
    return both.reshape(a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])


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
    y = g.op(
        "pooling",
        x,
        mode="average",
        lengths=kernel,
        stride=steps,
        padding=padding,
        dilations=(1,) * count,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad or divisor is not None,
    )
    if divisor is not None:
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
    if not node.unused(1):
        raise UnsupportedError("positions of adaptive max pooling are not supported")
    return [y, None]


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
    if all(n % m == 0 for n, m in zip(lens, out)):
        kernel = tuple(n // m for n, m in zip(lens, out))
        attributes = {"padding": (0,) * len(lens), "stride": kernel, "dilations": (1,) * len(lens)}
        return g.op("pooling", x, mode="max" if largest else "average", lengths=kernel, **attributes)
    for axis, (n, m) in enumerate(zip(lens, out), 2):
        starts = [k * n // m for k in range(m)]
        ends = [-(-(k + 1) * n // m) for k in range(m)]
        if not largest:  # windows of one axis as a product with a matrix of their weights
            weights = np.zeros((n, m))
            for k, (first, last) in enumerate(zip(starts, ends)):
                weights[first:last, k] = 1 / (last - first)
            order = [k for k in range(rank(x)) if k != axis] + [axis]
            back = [order.index(k) for k in range(rank(x))]
            x = g.transpose(g.matmul(g.transpose(x, order), g.literal(weights, x.shape.type)), back)
        else:
            parts = [g.reduce(op, g.slice(x, axis, a, b), [axis]) for a, b in zip(starts, ends)]
            x = g.op("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
    return x
