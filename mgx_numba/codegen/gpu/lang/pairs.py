"""Double-double arithmetic: numbers as unevaluated sums of two float64.

Dekker, "A floating-point technique for extending the available precision", 1971; Knuth, TAOCP 2, 4.2.2; with FMAs.
Results are accurate to about 2**-100 unless operands nearly cancel.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from ...lang.builder import Operand, VectorBuilder

_DOUBLE = ir.DoubleType()


class Pair(NamedTuple):
    """``hi + lo`` with |lo| at most half a unit in the last place of ``hi``."""

    hi: ir.Value
    lo: ir.Value


def constant(b: VectorBuilder, hi: float, lo: float = 0.0) -> Pair:
    """Return a constant pair."""
    return Pair(b.constant(_DOUBLE, hi), b.constant(_DOUBLE, lo))


def sum_of(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """Return x + y exactly."""
    hi = b.add(x, y)
    moved = b.sub(hi, x)
    return Pair(hi, b.add(b.sub(x, b.sub(hi, moved)), b.sub(y, moved)))


def ordered_sum(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """Return x + y exactly, if x is 0 or |x| >= |y|."""
    hi = b.add(x, y)
    return Pair(hi, b.sub(y, b.sub(hi, x)))


def product(b: VectorBuilder, x: Operand, y: Operand) -> Pair:
    """Return x * y exactly."""
    hi = b.mul(x, y)
    return Pair(hi, b.fused(x, y, b.neg(hi)))


def add(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """Return x + y."""
    made = sum_of(b, x.hi, y.hi)
    return ordered_sum(b, made.hi, b.add(made.lo, b.add(x.lo, y.lo)))


def multiply(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """Return x * y."""
    made = product(b, x.hi, y.hi)
    return ordered_sum(b, made.hi, b.fused(x.hi, y.lo, b.fused(x.lo, y.hi, made.lo)))


def divide(b: VectorBuilder, x: Pair, y: Pair) -> Pair:
    """Return x / y."""
    hi = b.div(x.hi, y.hi)
    left = b.add(b.fused(b.neg(hi), y.hi, x.hi), b.fused(b.neg(hi), y.lo, x.lo))
    return ordered_sum(b, hi, b.div(left, y.hi))


def root(b: VectorBuilder, x: Pair) -> Pair:
    """Return sqrt(x); 0 for 0."""
    hi = b.sqrt(x.hi)
    left = b.add(b.fused(b.neg(hi), hi, x.hi), x.lo)
    return ordered_sum(b, hi, b.select(b.fcmp("==", hi, 0.0), 0.0, b.div(left, b.mul(hi, 2.0))))


def scale(b: VectorBuilder, x: Pair, by: Operand) -> Pair:
    """Return x times a power of two."""
    return Pair(b.mul(x.hi, by), b.mul(x.lo, by))


def negative(b: VectorBuilder, x: Pair) -> Pair:
    """Return -x."""
    return Pair(b.neg(x.hi), b.neg(x.lo))


def choose(b: VectorBuilder, condition: ir.Value, x: Pair, y: Pair) -> Pair:
    """Return x where the condition holds, else y."""
    return Pair(b.select(condition, x.hi, y.hi), b.select(condition, x.lo, y.lo))


def total(b: VectorBuilder, x: Pair) -> ir.Value:
    """Return the nearest float64."""
    return b.add(x.hi, x.lo)
