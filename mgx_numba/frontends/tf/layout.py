"""Reshaping, transposition and broadcasting."""

from __future__ import annotations

from math import prod

from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .data_format import DataFormat
from .node import TfNode
from .registry import register


@register("Reshape")
def reshape(g: GraphBuilder, node: TfNode, x: Instruction, shape: Instruction) -> Instruction:
    """Reshape to a constant shape; one -1 takes the remaining elements."""
    dims = g.ints(shape, "shape")
    if any(d < -1 for d in dims) or dims.count(-1) > 1:
        raise ParseError(f"input 'shape' holds {dims}, expected lengths and at most one -1")
    count = prod(g.lens(x))
    known = prod(d for d in dims if d != -1)
    if -1 in dims and known:
        dims = [count // known if d == -1 else d for d in dims]
    dims = [0 if d == -1 else d for d in dims]
    if prod(dims) != count:
        raise ShapeError(f"{list(g.lens(x))} cannot be reshaped to {g.ints(shape, 'shape')}")
    return g.reshape(x, dims)


@register("ExpandDims")
def expand_dims(g: GraphBuilder, node: TfNode, x: Instruction, axis: Instruction) -> Instruction:
    """Insert an axis of length 1."""
    return g.unsqueeze(x, [g.axis(g.int_value(axis, "dim"), rank(x) + 1, "input 'dim'")])


@register("Squeeze")
def squeeze(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Remove the axes ``squeeze_dims``, or all axes of length 1."""
    lens = g.lens(x)
    axes = g.axes(node.get_ints("squeeze_dims", ()), len(lens), "squeeze_dims")
    axes = axes or [k for k, n in enumerate(lens) if n == 1]
    if any(lens[k] != 1 for k in axes):
        raise ShapeError(f"axes {axes} of lengths {list(lens)} are not all of length 1")
    return g.squeeze(x, axes)


@register("Transpose")
def transpose(g: GraphBuilder, node: TfNode, x: Instruction, perm: Instruction) -> Instruction:
    """Permute the axes by ``perm``."""
    order = g.axes(g.ints(perm, "perm"), rank(x), "input 'perm'")
    if len(order) != rank(x):
        raise ParseError(f"input 'perm' holds {order} for {rank(x)} dimensions")
    return g.transpose(x, order)


@register("BroadcastTo")
def broadcast_to(g: GraphBuilder, node: TfNode, x: Instruction, shape: Instruction) -> Instruction:
    """Broadcast by NumPy's rule."""
    dims = g.ints(shape, "shape")
    if g.outer_lens(g.lens(x), dims) != tuple(dims):
        raise ShapeError(f"{list(g.lens(x))} does not broadcast to {dims}")
    return g.broadcast(x, dims) if dims else x


@register("Tile")
def tile(g: GraphBuilder, node: TfNode, x: Instruction, multiples: Instruction) -> Instruction:
    """Emit repeated copies: a broadcast along new axes, then a reshape."""
    lens, counts = g.lens(x), g.ints(multiples, "multiples")
    if len(counts) != len(lens) or any(n < 0 for n in counts):
        raise ParseError(f"input 'multiples' holds {counts}, expected a count for each of {len(lens)} dimensions")
    if all(n == 1 for n in counts):
        return x
    out = [n * m for n, m in zip(lens, counts, strict=True)]
    if 0 in out:
        return g.reshape(g.slice(x, out.index(0), 0, 0), out)
    apart = g.reshape(x, [n for length in lens for n in (1, length)])
    wide = g.broadcast(apart, [n for count, length in zip(counts, lens, strict=True) for n in (count, length)])
    return g.reshape(wide, out)


@register("DepthToSpace", "SpaceToDepth")
def blocks_of_pixels(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Rearrange channels into squares of pixels, or squares of pixels into channels."""
    if rank(x) != 4:
        raise ParseError(f"the input has {rank(x)} dimensions, expected 4")
    form = DataFormat(node, x)
    x = form.channels_first(g, x)
    n, c, h, w = g.lens(x)
    b = node.get_int("block_size")
    spread = node.op_type == "DepthToSpace"
    if b < 2 or (c % (b * b) if spread else h % b or w % b):
        raise ShapeError(f"channels {c} and lengths {h} by {w} do not fit block_size {b}")
    if spread:
        parts = g.transpose(g.reshape(x, (n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
        y = g.reshape(parts, (n, c // (b * b), h * b, w * b))
    else:
        parts = g.transpose(g.reshape(x, (n, c, h // b, b, w // b, b)), (0, 3, 5, 1, 2, 4))
        y = g.reshape(parts, (n, c * b * b, h // b, w // b))
    return form.restored(g, y)
