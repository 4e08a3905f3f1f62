"""Activations: ``celu``, ``clip`` and the forms of GELU."""

from __future__ import annotations

from math import pi, sqrt

from ..instruction import Instruction
from .base import MacroBuilder, macro


@macro("celu", inputs=(1, 1), alpha=1.0)
def celu(e: MacroBuilder, x: Instruction, alpha: float) -> Instruction:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`` (ONNX Celu)."""
    if alpha == 0:
        raise e.fail("alpha is 0")
    bent = e.number("mul", e.number("sub", e.op("exp", e.number("div", x, alpha)), 1), alpha)
    return e.op("add", e.number("max", x, 0), e.number("min", bent, 0))


@macro("clip", inputs=(1, 3))
def clip(
    e: MacroBuilder, x: Instruction, low: Instruction | None = None, high: Instruction | None = None
) -> Instruction:
    """``min(max(low, x), high)`` without the bounds that are absent or ``undefined`` (ONNX Clip)."""
    low, high = (None if b is None or b.name == "undefined" else b for b in (low, high))
    if low is not None and high is not None:
        return e.pointwise("clip", x, low, high)
    if low is not None:
        return e.pointwise("max", x, low)
    return x if high is None else e.pointwise("min", x, high)


@macro("gelu_quick", inputs=(1, 1), alpha=1.702)
def gelu_quick(e: MacroBuilder, x: Instruction, alpha: float) -> Instruction:
    """``x * sigmoid(alpha * x)``."""
    return e.op("mul", x, e.op("sigmoid", e.number("mul", x, alpha)))


@macro("gelu_erf", inputs=(1, 1))
def gelu_erf(e: MacroBuilder, x: Instruction) -> Instruction:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``."""
    outer = e.number("add", e.op("erf", e.number("mul", x, 1 / sqrt(2))), 1)
    return e.op("mul", e.number("mul", x, 0.5), outer)  # ``2 * x`` may overflow


@macro("gelu_tanh", inputs=(1, 1), fast=False)
def gelu_tanh(e: MacroBuilder, x: Instruction, fast: bool) -> Instruction:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``; ``fast`` factors the cube."""
    square = e.op("mul", x, x)
    if fast:
        inner = e.op("mul", x, e.number("add", e.number("mul", square, 0.044715), 1))
    else:
        inner = e.op("add", x, e.number("mul", e.op("mul", square, x), 0.044715))
    bend = e.op("tanh", e.number("mul", inner, sqrt(2 / pi)))
    return e.op("mul", e.number("mul", x, 0.5), e.number("add", bend, 1))


@macro("gelu_split", inputs=(1, 1))
def gelu_split(e: MacroBuilder, x: Instruction) -> Instruction:
    """First half of the last axis times ``gelu_erf`` of its second half (BiasSplitGelu)."""
    axis, length = x.shape.ndim - 1, e.lens(x)[-1]
    if length % 2:
        raise e.fail(f"the last axis has odd length {length}")
    left, right = e.split(x, axis, [length // 2, length // 2])
    return e.op("mul", left, gelu_erf(e, right))
