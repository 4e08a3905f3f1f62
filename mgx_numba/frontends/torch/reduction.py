"""Reductions and running sums."""

from __future__ import annotations

import math

from ...core.dim import Dim, Length, known_equal
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .log_sums import log_of_sum
from .node import AtenNode
from .registry import register
from .types import Axes, Results, limits

NAMES = {"sum": "reduce_sum", "mean": "reduce_mean", "amax": "reduce_max", "amin": "reduce_min", "prod": "reduce_prod"}


def reduced(g: AtenBuilder, op: str, x: Instruction, dims: Axes, keepdim: bool) -> Instruction:
    """Emit a reduction over ``dims``, or over all axes without them; a tensor without axes stays as it is."""
    axes = g.all_axes(x, dims)
    return g.reduce(op, x, axes, keepdim) if axes else x


@register("sum", "sum.dim_IntList", "mean", "mean.dim", "amax", "amin")
def reduction(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: Axes = None, keepdim: bool = False, **_: object
) -> Instruction:
    """Emit a reduction in the result's type."""
    own = node.type
    if own is Type.bool_type:  # amax and amin of bool
        return g.cast(reduced(g, NAMES[node.base], g.cast(x, Type.uint8_type), dim, keepdim), own)
    return reduced(g, NAMES[node.base], g.cast(x, own), dim, keepdim)


@register("prod", "prod.dim_int")
def prod(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: Axes = None, keepdim: bool = False, **_: object
) -> Results:
    """Emit the product."""
    return reduced(g, "reduce_prod", g.cast(x, node.type), dim, keepdim)


@register("max", "min")
def extreme(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the greatest or least element.

    Raises:
        UnsupportedError: there is no element, for which PyTorch raises an error.
    """
    if any(known_equal(n, 0) for n in g.lens(x)):
        raise UnsupportedError(f"{node.base} of no elements")
    return reduced(g, f"reduce_{node.base}", x, None, False)


@register("max.dim", "min.dim")
def extreme_of_axis(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, keepdim: bool = False) -> Results:
    """Emit the greatest or least element of an axis and its position."""
    if rank(x) == 0:
        return [x, g.literal(0, Type.int64_type)]
    axis = g.axis(dim, rank(x))
    place = g.op(f"arg{node.base}", x, axis=axis)
    value = g.reduce(f"reduce_{node.base}", x, [axis], keepdim)
    return [value, place if keepdim else g.squeeze(place, [axis])]


@register("argmax", "argmin")
def arg_extreme(
    g: AtenBuilder, node: AtenNode, x: Instruction, dim: int | None = None, keepdim: bool = False
) -> Instruction:
    """Emit the position of the greatest or least element of an axis, or of the flat tensor."""
    if rank(x) == 0:
        return g.literal(0, Type.int64_type)
    if dim is None:
        place = g.reshape(g.op(node.base, g.flat(x), axis=0), ())
        return g.reshape(place, (1,) * rank(x)) if keepdim else place
    axis = g.axis(dim, rank(x))
    place = g.op(node.base, x, axis=axis)
    return place if keepdim else g.squeeze(place, [axis])


@register("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def quantifier(g: AtenBuilder, node: AtenNode, x: Instruction, dim: Axes = None, keepdim: bool = False) -> Instruction:
    """Emit whether any or all elements differ from 0."""
    if dim == [] and node.operator.endswith("dims"):
        return g.cast(g.cast(x, Type.bool_type), node.type)
    return g.cast(reduced(g, f"reduce_{node.base}", g.cast(x, Type.bool_type), dim, keepdim), node.type)


def _variance(g: AtenBuilder, x: Instruction, dim: Axes, correction: float | None) -> tuple[Instruction, Instruction]:
    """Emit the variance and the mean over axes, which are kept."""
    axes = g.all_axes(x, dim)
    mean = g.reduce("reduce_mean", x, axes)
    squares = g.pointwise("sqdiff", x, mean)
    correction = 1 if correction is None else correction
    if correction == 0:
        return g.reduce("reduce_mean", squares, axes), mean
    count: Length = math.prod([g.lens(x)[k] for k in axes])
    total = g.reduce("reduce_sum", squares, axes)
    if isinstance(count, Dim):
        number = g.cast(g.literal(count - int(correction), Type.int64_type), x.shape.type)
        return g.pointwise("div", total, g.pointwise("max", number, g.like(0, x))), mean
    return g.pointwise("div", total, g.like(max(count - correction, 0), x)), mean


@register("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def variance(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    dim: Axes = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> Results:
    """Emit variance or standard deviation, and perhaps the mean."""
    spread, mean = _variance(g, x, dim, correction)
    if node.base.startswith("std"):
        spread = g.op("sqrt", spread)
    axes = g.all_axes(x, dim)
    found = [spread, mean] if keepdim else [g.squeeze(v, axes) for v in (spread, mean)]
    return found if node.base.endswith("mean") else found[0]


@register("linalg_vector_norm")
def vector_norm(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    order: float = 2,
    dim: Axes = None,
    keepdim: bool = False,
    **_: object,
) -> Instruction:
    """Emit the norm of vectors along axes."""
    x = g.cast(x, node.type)
    if order == 2:
        return g.op("sqrt", reduced(g, "reduce_sum", g.op("mul", x, x), dim, keepdim))
    size = g.op("abs", x)
    if order in (1, math.inf, -math.inf):
        op = {1: "reduce_sum", math.inf: "reduce_max", -math.inf: "reduce_min"}[order]
        return reduced(g, op, size, dim, keepdim)
    if order == 0:
        return reduced(g, "reduce_sum", g.cast(g.cast(x, Type.bool_type), node.type), dim, keepdim)
    total = reduced(g, "reduce_sum", g.combined("pow", node.type, size, float(order)), dim, keepdim)
    return g.combined("pow", node.type, total, 1 / float(order))


@register("cumsum")
def cumsum(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, **_: object) -> Instruction:
    """Emit the running sum along an axis."""
    x = g.cast(x, node.type)
    if rank(x) == 0:
        return x
    return g.op("prefix_scan_sum", x, axis=g.axis(dim, rank(x)), exclusive=False, reverse=False)


@register("cumprod", "cummax", "cummin", "logcumsumexp")
def cumulative(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int, **_: object) -> Results:
    """Emit the running product, logarithm of a sum of exponentials, or extreme and its position, by doubling: after
    step s each element covers the last ``2**s``.

    Of equal extremes, and of NaN, the last position counts.
    """
    x = g.cast(x, node.type)
    alone = node.base in ("cumprod", "logcumsumexp")
    if rank(x) == 0:
        return x if alone else [x, g.literal(0, Type.int64_type)]
    axis = g.axis(dim, rank(x))
    length, distance = g.lens(x)[axis], 1
    if isinstance(length, Dim):
        raise UnsupportedError(f"{node.base} along an open length is not supported")
    places = g.broadcast(g.iota(length, axis, rank(x)), g.lens(x))
    better = "greater_or_equal" if node.base == "cummax" else "less_or_equal"

    def moved(y: Instruction, filled: float) -> Instruction:
        first = g.slice(y, axis, 0, length - distance)
        lens = [distance if k == axis else n for k, n in enumerate(g.lens(y))]
        return g.op("concat", g.zeros(lens, y.shape.type, filled), first, axis=axis)

    while distance < length:
        if node.base == "cumprod":
            x = g.op("mul", x, moved(x, 1))
        elif alone:
            x = log_of_sum(g, x, moved(x, -math.inf))
        else:
            before = moved(x, limits(x.shape.type)[int(node.base == "cummin")])
            kept = g.pointwise(better, x, before)
            if x.shape.type.is_floating:
                kept = g.op("logical_or", kept, g.op("isnan", x))
            x, places = (g.pointwise("where", kept, a, b) for a, b in ((x, before), (places, moved(places, 0))))
        distance *= 2
    return x if alone else [x, places]
