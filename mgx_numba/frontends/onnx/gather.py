"""Gather and scatter: selection and placement of elements by index."""

from __future__ import annotations

import numpy as np

from ...core.dim import Dim
from ...core.types import Type
from ...errors import ParseError, UnsupportedError
from ...graph.instruction import Instruction
from ...graph.length_arithmetic import has_symbolic_elements
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register

REDUCTIONS = ("none", "add", "mul", "min", "max")


@register("Gather")
def gather(g: Builder, node: Node, data: Instruction, indices: Instruction) -> Instruction:
    """Emit slices of ``axis`` at the indices; negative indices count from the end."""
    axis = g.axis(node.get_int("axis", 0), rank(data))
    return g.op("gather", data, indices, axis=axis)


@register("GatherElements")
def gather_elements(g: Builder, node: Node, data: Instruction, indices: Instruction) -> Instruction:
    """Emit the element at each index along ``axis``."""
    axis = g.axis(node.get_int("axis", 0), rank(data))
    return g.op("gather_elements", data, indices, axis=axis)


@register("GatherND", domain=("", MICROSOFT))
def gather_nd(g: Builder, node: Node, data: Instruction, indices: Instruction) -> Instruction:
    """Emit slices at the index tuples in the last axis of the indices."""
    return g.op("gathernd", data, indices, batch_dims=node.get_int("batch_dims", 0))


@register("ScatterElements", "Scatter")
def scatter_elements(
    g: Builder, node: Node, data: Instruction, indices: Instruction, updates: Instruction
) -> Instruction:
    """Write updates at the indices along ``axis``, or combine them by ``reduction``."""
    reduction = node.get_choice("reduction", REDUCTIONS, "none")
    axis = g.axis(node.get_int("axis", 0), rank(data))
    return g.op(f"scatter_{reduction}", data, indices, updates, axis=axis)


@register("ScatterND")
def scatter_nd(g: Builder, node: Node, data: Instruction, indices: Instruction, updates: Instruction) -> Instruction:
    """Write updates at index tuples, or combine them by ``reduction``."""
    reduction = node.get_choice("reduction", REDUCTIONS, "none")
    if rank(updates) == 0 and rank(indices) == 1:
        indices, updates = g.unsqueeze(indices, [0]), g.unsqueeze(updates, [0])
    return g.op(f"scatternd_{reduction}", data, indices, updates)


@register("TensorScatter")
def tensor_scatter(
    g: Builder, node: Node, past: Instruction, update: Instruction, write: Instruction | None = None
) -> Instruction:
    """Write new steps into a key/value cache from ``write_indices`` on (wrapping around in mode ``circular``)."""
    lens, new = g.lens(past), g.lens(update)
    axis = g.axis(node.get_int("axis", -2), len(lens))
    if axis == 0 or len(new) != len(lens):
        raise ParseError(f"axis {axis} must not be the batch axis, and ranks {len(lens)} and {len(new)} must agree")
    circular = node.get_choice("mode", ("linear", "circular"), "linear") == "circular"
    g.limit(new[axis], "a table of positions")
    steps = g.iota(new[axis], 1, 2)
    starts = write if write is not None else _zeros(g, lens[0])
    places = g.pointwise("add", g.reshape(g.convert(starts, Type.int64_type), (lens[0], 1)), steps)
    if circular:
        places = g.pointwise("mod", places, g.like(lens[axis], places))
    places = g.from_start(places)
    aligned = [1] * len(lens)
    aligned[0], aligned[axis] = lens[0], new[axis]
    return g.op("scatter_none", past, g.broadcast(g.reshape(places, aligned), new), update, axis=axis)


def _zeros(g: Builder, count: int) -> Instruction:
    """Emit int64 zeros [count]; ``count`` may be symbolic."""
    if isinstance(count, Dim):
        return g.broadcast(g.literal(np.zeros(1, np.int64)), (count,))
    return g.literal(np.zeros(count, np.int64))


@register("OneHot")
def one_hot(g: Builder, node: Node, indices: Instruction, depth: Instruction, values: Instruction) -> Instruction:
    """Emit ``values[1]`` where the index equals the position along the new axis, ``values[0]`` elsewhere."""
    given = g.constant(depth, "depth")
    length = given.ravel()[0] if has_symbolic_elements(given) else int(given.ravel()[0]) if given.size == 1 else 0
    if given.size != 1 or length < 1:
        raise ParseError(f"depth is {given.tolist()}, expected one positive number")
    axis = g.axis(node.get_int("axis", -1), rank(indices) + 1)
    whole = g.convert(indices, Type.int64_type)
    if rank(indices) == 0:
        one = g.op("onehot", whole, values, axis=-1, depth=length)
        return g.squeeze(one, [0])
    return g.op("onehot", whole, values, axis=axis, depth=length)


@register("Compress")
def compress(g: Builder, node: Node, x: Instruction, condition: Instruction) -> Instruction:
    """Emit the slices of ``axis`` (without it: elements of the flat data) where the condition holds."""
    if not node.has("axis"):
        x, axis = g.flat(x), 0
    else:
        axis = g.axis(node.get_int("axis"), rank(x))
    known = g.constants.value(condition)
    if known is None:
        places = g.op("nonzero", g.flat(condition), use_dyn_output=True)
        return g.op("gather", x, g.squeeze(places, [0]), axis=axis)
    keep = np.flatnonzero(known).astype(np.int64)
    if keep.size and keep[-1] >= g.lens(x)[axis]:
        raise UnsupportedError(f"condition keeps position {keep[-1]} of axis {axis}, which has {g.lens(x)[axis]}")
    return g.op("gather", x, g.literal(keep), axis=axis)
