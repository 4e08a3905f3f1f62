"""Greatest common divisors, by a loop."""

from __future__ import annotations

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...graph.instruction import Instruction
from ..loops import as_entered, members
from .builder import AtenBuilder
from .node import AtenNode
from .registry import register

_STEPS = 100
"""Most divisions of Euclid's algorithm: 64-bit numbers take at most 91, as Fibonacci numbers do (Lamé)."""


@register("gcd", "prims::gcd")
def gcd(g: AtenBuilder, node: AtenNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the greatest common divisor, which is not negative, by Euclid's algorithm on all elements at once."""
    carried = g.same_lens(*(g.op("abs", g.cast(x, node.type)) for x in (a, b)))
    inner = g.inner("gcd")
    inner.module.add_parameter("iteration", Shape(Type.int64_type))
    inner.module.add_parameter("condition", Shape(Type.bool_type))
    first, second = (inner.module.add_parameter(f"carried_{k}", x.shape.row_major()) for k, x in enumerate(carried))
    done = inner.pointwise("equal", second, inner.like(0, second))
    divisor = inner.pointwise("where", done, inner.like(1, second), second)
    rest = inner.pointwise("where", done, second, inner.pointwise("fmod", first, divisor))
    inner.module.add_return([_any(inner, rest), inner.pointwise("where", done, first, second), rest])
    start, most = _any(g, carried[1]), g.literal(np.array([_STEPS]))
    scans: tuple[int, ...] = ()
    looped = g.op(
        "loop", most, start, *carried, modules=[inner.module], max_iterations=_STEPS, scan_output_directions=scans
    )
    return as_entered(g, members(g, looped, inner.module)[0], carried[0])


def _any(g: AtenBuilder, x: Instruction) -> Instruction:
    """Emit whether an element differs from 0, as one element."""
    return g.reshape(g.reduce("reduce_any", g.cast(g.flat(x), Type.bool_type), [0], keep=False), (1,))
