"""Group normalisation between convolutions, as exporters write it."""

from __future__ import annotations

from collections.abc import Sequence

from mgx_numba.graph.instruction import Instruction
from mgx_numba.graph.program import Program

from .support import Graph

__all__ = ["convolution", "group_norm", "network", "scaled", "standardised"]


def convolution(g: Graph, x: Instruction, n: int) -> Instruction:
    spatial = x.shape.ndim - 2
    weights = g.random(n, x.shape.lens[1], *[1] * spatial)
    return g.op("convolution", x, weights, padding=(0,) * spatial, stride=(1,) * spatial, dilation=(1,) * spatial)


def standardised(g: Graph, x: Instruction, axes: Sequence[int]) -> Instruction:
    lens = x.shape.lens
    difference = g.op("sub", x, g.spread(g.op("reduce_mean", x, axes=axes), *lens))
    variance = g.op("reduce_mean", g.op("mul", difference, difference), axes=axes)
    inverse = g.op("rsqrt", g.op("add", variance, g.scalar(1e-5, variance)))
    return g.op("mul", difference, g.spread(inverse, *lens))


def scaled(g: Graph, x: Instruction) -> Instruction:
    """Append a scale for each channel, and a shift for each channel of each image."""
    lens, ones = x.shape.lens, (1,) * (x.shape.ndim - 2)
    x = g.op("mul", x, g.spread(g.random(lens[1], *ones), *lens))
    own = g.op("unsqueeze", g.param("shift", lens[:2]), axes=tuple(range(2, len(lens))))
    return g.op("relu", g.op("add", x, g.spread(own, *lens)))


def group_norm(g: Graph, x: Instruction, groups: int, merged: bool = True) -> Instruction:
    lens = x.shape.lens
    rest = (-1,) if merged else (lens[1] // groups, *lens[2:])
    y = g.op("reshape", x, dims=(lens[0], groups, *rest))
    y = g.op("reshape", standardised(g, y, range(2, y.shape.ndim)), dims=lens)
    return scaled(g, y)


def network(lens: Sequence[int], groups: int, merged: bool = True) -> Program:
    g = Graph()
    x = convolution(g, g.param("x", [lens[0], 3, *lens[2:]]), lens[1])
    return g.ret(convolution(g, group_norm(g, x, groups, merged), 2))
