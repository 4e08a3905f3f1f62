"""Numbers as sums of two float64: what the first is rounded off by is the second one.

Dekker, "A floating-point technique for extending the available precision", 1971; Knuth, TAOCP 2, 4.2.2; with fused
multiply-adds. Results are right to some 2**-100 unless both operands nearly cancel.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from ...lang.builder import Operand, VectorBuilder

__all__ = [
    "Pair", "add", "choose", "constant", "divide", "multiply", "negative", "ordered_sum", "product", "root", "scale",
    "sum_of", "total",
]  # fmt: skip

_DOUBLE = ir.DoubleType()


class Pair(NamedTuple):
    """``hi + lo``; ``lo`` is at most half a unit in the last place of ``hi``."""

    hi: ir.Value
    lo: ir.Value


def constant(b: VectorBuilder, hi: float, lo: float = 0.0) -> Pair:
    """A number that is known."""
    return Pair(b.constant(_DOUBLE, hi), b.constant(_DOUBLE, lo))


def sum_of(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """x + y, nothing lost."""
    hi = b.add(x, y)
    moved = b.sub(hi, x)
    return Pair(hi, b.add(b.sub(x, b.sub(hi, moved)), b.sub(y, moved)))


def ordered_sum(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """The same where x is 0 or not the smaller one."""
    hi = b.add(x, y)
    return Pair(hi, b.sub(y, b.sub(hi, x)))


def product(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """x * y, nothing lost."""
    hi = b.mul(x, y)
    return Pair(hi, b.fused(x, y, b.neg(hi)))


def add(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """x + y."""
    made = sum_of(b, x.hi, y.hi)
    return ordered_sum(b, made.hi, b.add(made.lo, b.add(x.lo, y.lo)))


def multiply(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """x * y."""
    made = product(b, x.hi, y.hi)
    return ordered_sum(b, made.hi, b.fused(x.hi, y.lo, b.fused(x.lo, y.hi, made.lo)))


def divide(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """x / y."""
    hi = b.div(x.hi, y.hi)
    left = b.add(b.fused(b.neg(hi), y.hi, x.hi), b.fused(b.neg(hi), y.lo, x.lo))
    return ordered_sum(b, hi, b.div(left, y.hi))


def root(b: VectorBuilder, x: Pair) -> Pair:
    """The square root; of 0 it is 0."""
    hi = b.sqrt(x.hi)
    left = b.add(b.fused(b.neg(hi), hi, x.hi), x.lo)
    return ordered_sum(b, hi, b.select(b.fcmp("==", hi, 0.0), 0.0, b.div(left, b.mul(hi, 2.0))))


def scale(b: VectorBuilder, x: Pair, by: Operand) -> Pair:
    """x times a power of two."""
    return Pair(b.mul(x.hi, by), b.mul(x.lo, by))


def negative(b: VectorBuilder, x: Pair) -> Pair:
    """-x."""
    return Pair(b.neg(x.hi), b.neg(x.lo))


def choose(b: VectorBuilder, condition: ir.Value, x: Pair, y: Pair) -> Pair:
    """x where the condition holds, else y."""
    return Pair(b.select(condition, x.hi, y.hi), b.select(condition, x.lo, y.lo))


def total(b: VectorBuilder, x: Pair) -> ir.Value:
    """The nearest float64."""
    return b.add(x.hi, x.lo)
