"""Random numbers; nodes without a seed give different numbers in every run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .node import Node
from .registry import register
from .tensors import element_count, ir_type


def uniform(g: Builder, node: Node, lens: Sequence[int], type: Type) -> Instruction:
    """Emit uniform numbers in [0, 1) of the given lengths, from the node's seed or a new seed in every run."""
    element_count(list(lens), "the shape")
    seed = g.op("random_seed") if not node.has("seed") else g.literal(np.array([_seed(node)], np.uint64))
    like = g.broadcast(g.literal(0, type), lens) if lens else g.literal(0, type)
    return g.op("random_uniform", seed, like)


def _seed(node: Node) -> int:
    """Return an integer seed, or the bits of a fractional seed."""
    seed = node.get_number("seed")
    return seed & 0xFFFFFFFF if isinstance(seed, int) else int(np.float32(seed).view(np.uint32))


def _lens_and_type(g: Builder, node: Node, x: Instruction | None) -> tuple[Sequence[int], Type]:
    if x is None:
        lens: Sequence[int] = node.get_ints("shape")
        type = ir_type(node.get_int("dtype", 1))
    else:
        lens = g.lens(x)
        type = ir_type(node.get_int("dtype")) if node.has("dtype") else x.shape.type
    if not type.is_floating:
        raise ParseError(f"random numbers must be floating point, got {type.name}")
    return lens, type


@register("RandomUniform", "RandomUniformLike")
def random_uniform(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """Emit uniform numbers between ``low`` and ``high``."""
    lens, type = _lens_and_type(g, node, x)
    low, high = node.get_float("low", 0.0), node.get_float("high", 1.0)
    numbers = uniform(g, node, lens, Type.float_type)
    scaled = g.pointwise("mul", numbers, g.like(high - low, numbers))
    return g.convert(g.pointwise("add", scaled, g.like(low, scaled)), type)


@register("RandomNormal", "RandomNormalLike")
def random_normal(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """Emit normally distributed numbers with ``mean`` and ``scale``, by the Box-Muller transform (1958)."""
    lens, type = _lens_and_type(g, node, x)
    pairs = uniform(g, node, (2, *lens), Type.float_type)
    first, second = (g.reshape(p, lens) for p in g.split(pairs, 0, [1, 1]))
    inverted = g.pointwise("sub", g.like(1, first), first)
    radius = g.op("sqrt", g.pointwise("mul", g.op("log", inverted), g.like(-2, first)))
    angle = g.op("cos", g.pointwise("mul", second, g.like(2 * math.pi, second)))
    normal = g.pointwise("mul", g.op("mul", radius, angle), g.like(node.get_float("scale", 1.0), angle))
    return g.convert(g.pointwise("add", normal, g.like(node.get_float("mean", 0.0), normal)), type)


@register("Dropout")
def dropout(
    g: Builder,
    node: Node,
    x: Instruction,
    ratio: Instruction | None = None,
    training: Instruction | None = None,
) -> list[Instruction]:
    """Emit the input unchanged; in training mode (from operator set 12) drop elements and scale up the others."""
    flag = None if training is None else g.constant(training, "training_mode")
    if flag is None or not flag.any():
        return _kept(g, node, x)
    amount = 0.5 if ratio is None else float(g.constant(ratio, "ratio").ravel()[0])
    if not 0 <= amount < 1:
        raise ParseError(f"ratio is {amount}, expected at least 0 and below 1")
    if amount == 0:
        return _kept(g, node, x)
    numbers = uniform(g, node, g.lens(x), Type.float_type)
    kept = g.pointwise("greater_or_equal", numbers, g.like(amount, numbers))
    scaled = g.pointwise("mul", x, g.like(1 / (1 - amount), x))
    return [g.pointwise("where", kept, scaled, g.like(0, x)), kept]


def _kept(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Return the input and, if used, a mask of the type that the operator set requires."""
    y = g.op("identity", x)
    if not node.wants(1):
        return [y]
    return [y, g.broadcast(g.literal(True, Type.bool_type if node.opset >= 10 else x.shape.type), g.lens(x))]


@register("Multinomial")
def multinomial(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Draw categories by unnormalised log probabilities [batch, categories]."""
    if rank(x) != 2:
        raise ParseError(f"input has {rank(x)} dimensions, expected 2")
    count = node.get_int("sample_size", 1)
    if count < 1:
        raise ParseError(f"sample_size is {count}, expected at least 1")
    wide = g.convert(x, Type.float_type)
    weights = g.op("exp", g.pointwise("sub", wide, g.reduce("reduce_max", wide, [1])))
    running = g.op("prefix_scan_sum", weights, axis=1)
    numbers = uniform(g, node, (g.lens(x)[0], count), Type.float_type)
    return g.op("multinomial", running, numbers, dtype=ir_type(node.get_int("dtype", 6)))
