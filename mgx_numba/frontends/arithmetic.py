"""Arithmetic that frontends share."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.types import Type
from ..graph.instruction import Instruction
from .builder import GraphBuilder


def mul_scalar(g: GraphBuilder, x: Instruction, value: float) -> Instruction:
    """Emit ``x * value``."""
    return x if value == 1 else g.pointwise("mul", x, g.like(value, x))


def widened(g: GraphBuilder, x: Instruction) -> Instruction:
    """Return ``x`` in float32 or double, in which statistics are computed: 16 bits may overflow."""
    return x if x.shape.type is Type.double_type else g.convert(x, Type.float_type)


def standardize(
    g: GraphBuilder, x: Instruction, axes: Sequence[int], epsilon: float
) -> tuple[Instruction, Instruction, Instruction]:
    """Emit ``(x - mean) / sqrt(variance + epsilon)`` over axes, the mean, and ``1 / sqrt(variance + epsilon)``."""
    mean = g.reduce("reduce_mean", x, axes)
    centred = g.pointwise("sub", x, mean)
    variance = g.reduce("reduce_mean", g.pointwise("sqdiff", x, mean), axes)
    inverse = g.op("rsqrt", g.pointwise("add", variance, g.like(epsilon, x)))
    return g.pointwise("mul", centred, inverse), mean, inverse
