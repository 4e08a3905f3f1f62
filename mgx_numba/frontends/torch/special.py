"""Special functions, and neighbours of floating-point numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...graph.instruction import Instruction
from .builder import AtenBuilder
from .node import AtenNode
from .pointwise import signbit
from .registry import register

SHIFT = 8
"""Arguments below this number are shifted up by it: from there on 7 terms of Stirling's series are exact to 1e-15."""
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""Coefficients of 1 / x, 1 / x**3, ...: B(2 k) / (2 k (2 k - 1)) with Bernoulli's numbers (DLMF 5.11.1)."""


def _polynomial(g: AtenBuilder, x: Instruction, coefficients: Sequence[float]) -> Instruction:
    """Emit a polynomial, whose coefficient of the highest power comes first."""
    total = g.like(coefficients[0], x)
    for value in coefficients[1:]:
        total = g.pointwise("add", g.pointwise("mul", total, x), g.like(value, x))
    return total


def _chosen(g: AtenBuilder, condition: Instruction, a: Instruction | float, b: Instruction) -> Instruction:
    return g.pointwise("where", condition, a if isinstance(a, Instruction) else g.like(a, b), b)


def _signed(g: AtenBuilder, node: AtenNode, size: Instruction, sign: Instruction) -> Instruction:
    """Emit a number that is not negative with the sign of another."""
    return g.pointwise("where", signbit(g, node, sign), g.op("neg", size), size)


@register("lgamma", "prims::lgamma", "digamma", "prims::digamma")
def gamma(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the logarithm of the gamma function's magnitude, or its derivative, by Stirling's series in float64."""
    x = g.cast(x, Type.double_type)
    zero, one = g.like(0, x), g.like(1, x)
    left = g.pointwise("less", x, g.like(0.5, x))
    y = g.pointwise("where", left, g.pointwise("sub", one, x), x)  # reflection
    small = g.pointwise("less", y, g.like(SHIFT, y))
    far = g.pointwise("where", small, g.pointwise("add", y, g.like(SHIFT, y)), y)
    steps = [g.pointwise("add", y, g.like(k, y)) for k in range(SHIFT)]
    inverse = g.op("recip", far)
    squared = g.op("mul", inverse, inverse)
    log = g.op("log", far)
    beside = g.pointwise("sub", x, g.op("nearbyint", x))
    turn = g.combined("mul", x.shape.type, beside, math.pi)  # sines of it are exactly 0 at integers
    if node.base == "lgamma":
        product = steps[0]
        for step in steps[1:]:
            product = g.op("mul", product, step)
        series = g.op("mul", _polynomial(g, squared, STIRLING[::-1]), inverse)
        main = g.op("mul", g.pointwise("sub", far, g.like(0.5, far)), g.pointwise("sub", log, one))
        main = g.pointwise("add", main, g.like(0.5 * math.log(2 * math.pi) - 0.5, far))
        value = g.op("add", main, series)
        value = g.op("sub", value, g.op("log", g.pointwise("where", small, product, one)))
        zeros = g.op("logical_or", g.pointwise("equal", x, one), g.pointwise("equal", x, g.like(2, x)))
        value = _chosen(g, zeros, 0, _chosen(g, g.op("isinf", y), math.inf, value))
        sine = g.op("abs", g.op("sin", turn))
        mirrored = g.op("sub", g.op("log", g.pointwise("div", g.like(math.pi, sine), sine)), value)
        mirrored = _chosen(g, g.op("isinf", x), math.inf, mirrored)
    else:
        total = g.op("recip", steps[0])
        for step in steps[1:]:
            total = g.op("add", total, g.op("recip", step))
        weights = [(2 * k + 1) * c for k, c in enumerate(STIRLING)]
        series = g.op("mul", _polynomial(g, squared, weights[::-1]), squared)
        value = g.op("sub", g.pointwise("sub", log, g.pointwise("mul", inverse, g.like(0.5, inverse))), series)
        value = g.op("sub", value, g.pointwise("where", small, total, zero))
        mirrored = g.op("sub", value, g.pointwise("div", g.like(math.pi, turn), g.op("tan", turn)))
        poles = g.pointwise("equal", beside, g.like(0, beside))
        mirrored = _chosen(g, poles, math.nan, mirrored)
        pole = _signed(g, node, g.like(math.inf, x), g.op("neg", x))
        mirrored = _chosen(g, g.pointwise("equal", x, zero), pole, mirrored)
    return g.cast(g.pointwise("where", left, mirrored, value), node.type)


CENTRAL = (-0.140543331, 0.914624893, -1.645349621, 0.886226899), (0.012229801, -0.329097515, 1.442710462, -2.118377725)
"""Numerator and denominator (less a constant of 1) of erfinv's first guess near 0, as in ATen's ``calc_erfinv``."""
TAIL = (1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200)
"""The same near 1 and -1."""


@register("erfinv", "prims::erf_inv")
def erfinv(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the inverse of the error function: a rational guess and two Newton steps in float64, as in ATen."""
    x = g.cast(x, Type.double_type)
    size = g.op("abs", x)
    one, square = g.like(1, x), g.op("mul", x, x)

    def ratio(at: Instruction, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> Instruction:
        return g.op("div", _polynomial(g, at, parts[0]), _polynomial(g, at, (*parts[1], 1.0)))

    rest = g.pointwise("mul", g.pointwise("sub", one, size), g.like(0.5, x))
    tail = _signed(g, node, ratio(g.op("sqrt", g.op("neg", g.op("log", rest))), TAIL), x)
    near = g.pointwise("less_or_equal", size, g.like(0.7, x))
    y = g.pointwise("where", near, g.op("mul", x, ratio(square, CENTRAL)), tail)
    for _ in range(2):
        slope = g.combined("mul", y.shape.type, g.op("exp", g.op("neg", g.op("mul", y, y))), 2 / math.sqrt(math.pi))
        y = g.op("sub", y, g.op("div", g.op("sub", g.op("erf", y), x), slope))
    y = _chosen(g, g.pointwise("equal", size, one), _signed(g, node, g.like(math.inf, x), x), y)
    return g.cast(_chosen(g, g.pointwise("greater", size, one), math.nan, y), node.type)


@register("nextafter", "prims::nextafter")
def nextafter(g: AtenBuilder, node: AtenNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the number beside ``a`` on the way to ``b``: its bits as an integer, plus or minus one."""
    a, b = g.same_lens(a, b)
    signed = {2: Type.int16_type, 4: Type.int32_type, 8: Type.int64_type}[a.shape.type.size]
    zero = g.like(0, a)
    bits, other = (g.op("bit_cast", x, target_type=signed) for x in (a, b))
    away = g.pointwise("equal", g.pointwise("less", a, b), g.pointwise("greater", a, zero))
    moved = g.op("add", bits, g.pointwise("where", away, g.like(1, bits), g.like(-1, bits)))
    negative = np.iinfo(signed.numpy).min + 1  # the bits of the greatest number below 0
    least = g.pointwise("where", signbit(g, node, b), g.like(negative, bits), g.like(1, bits))
    moved = g.pointwise("where", g.pointwise("equal", a, zero), least, moved)
    moved = g.pointwise("where", g.op("isnan", a), bits, moved)
    ends = g.op("logical_or", g.pointwise("equal", a, b), g.op("isnan", b))
    return g.op("bit_cast", g.pointwise("where", ends, other, moved), target_type=a.shape.type)
