"""The sum of two numbers that are given by their logarithms."""

from __future__ import annotations

from ...graph.instruction import Instruction
from .builder import AtenBuilder


def log_of_sum(g: AtenBuilder, a: Instruction, b: Instruction) -> Instruction:
    """Emit ``log(exp(a) + exp(b))`` without overflow."""
    top = g.pointwise("max", a, b)
    distance = g.op("neg", g.op("abs", g.pointwise("sub", a, b)))
    tail = g.op("log", g.pointwise("add", g.op("exp", distance), g.like(1, distance)))
    return g.pointwise("where", g.op("isinf", top), top, g.pointwise("add", top, tail))
