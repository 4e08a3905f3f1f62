"""Constants, values that depend on shapes only, and operators that return their input."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.types import Type
from ...errors import ParseError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .node import TfNode
from .registry import register
from .tensors import tf_tensor_array


@register("Const")
def const(g: GraphBuilder, node: TfNode) -> Instruction:
    """Emit the attribute ``value``."""
    return g.literal(tf_tensor_array(node.get_tensor("value")))


@register(
    "CheckNumerics",
    "EnsureShape",
    "Identity",
    "PlaceholderWithDefault",
    "PreventGradient",
    "Snapshot",
    "StopGradient",
)
def identity(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Return the input; a placeholder with a default value is that value."""
    return x


@register("IdentityN")
def identity_n(g: GraphBuilder, node: TfNode, *values: Instruction) -> list[Instruction]:
    """Return the inputs."""
    return list(values)


@register("Shape", "ShapeN")
def shape(g: GraphBuilder, node: TfNode, *values: Instruction) -> list[Instruction]:
    """Emit the lengths of each input."""
    return [_known(g, node, np.array(g.lens(x), np.int64)) for x in values]


@register("Rank")
def rank_node(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the rank."""
    return g.literal(np.int32(rank(x)))


@register("Size")
def size(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the number of elements."""
    return _known(g, node, np.array(prod(g.lens(x))))


def _known(g: GraphBuilder, node: TfNode, value: np.ndarray) -> Instruction:
    return g.literal(value, node.get_type("out_type", Type.int32_type))


@register("Fill")
def fill(g: GraphBuilder, node: TfNode, dims: Instruction, value: Instruction) -> Instruction:
    """Emit a value broadcast to constant dimensions."""
    lens = g.ints(dims, "dims")
    if any(n < 0 for n in lens):
        raise ParseError(f"input 'dims' holds {lens}, expected lengths from 0 on")
    return g.broadcast(value, lens) if 0 not in lens else g.literal(np.empty(lens, value.shape.type.numpy))


@register("OnesLike", "ZerosLike")
def filled_like(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit ones or zeros in the shape of the input."""
    lens = g.lens(x)
    value = g.like(node.op_type == "OnesLike", x)
    return g.broadcast(value, lens) if 0 not in lens else g.literal(np.empty(lens, x.shape.type.numpy))


@register("Range")
def arange(g: GraphBuilder, node: TfNode, start: Instruction, limit: Instruction, delta: Instruction) -> Instruction:
    """Emit the range from ``start`` to before ``limit``, which must be constant."""
    parts = {"start": start, "limit": limit, "delta": delta}
    first, last, step = (g.constant(x, what).ravel()[0] for what, x in parts.items())
    if step == 0:
        raise ParseError("input 'delta' is 0")
    if not all(np.isfinite(float(v)) for v in (first, last, step)):
        raise UnsupportedError(f"a range from {first} to {last} by {step} is not supported")
    if abs((float(last) - float(first)) / float(step)) > LARGEST:
        raise UnsupportedError(f"a range from {first} to {last} by {step} is too long, at most {LARGEST} are supported")
    return g.literal(np.arange(first, last, step).astype(start.shape.type.numpy))
