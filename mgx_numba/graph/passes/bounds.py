"""Between which numbers a value lies, as far as the operations that make it tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..instruction import Instruction
from .constants import CONSTANT_VIEWS, compact, constant_array, is_constant

__all__ = ["bounds"]

Bounds = tuple[float, float]

ANYTHING: Bounds = (-math.inf, math.inf)
DEPTH = 8
"""Instructions that are looked through, one after another: a floor under a divisor is near to it."""


def bounds(ins: Instruction, depth: int = DEPTH) -> Bounds:
    """Least and greatest number that a floating-point value can be, infinities where nothing is known.

    Elements may be NaN besides. Bounds are rounded as the operations are: they hold up to a few units in the last
    place.
    """
    if is_constant(ins):
        return _constant(ins)
    if depth == 0 or not ins.inputs or not ins.shape.type.is_floating:
        return ANYTHING
    if ins.name in CONSTANT_VIEWS or ins.name in ("reduce_max", "reduce_min", "reduce_mean"):
        return bounds(ins.inputs[0], depth - 1)
    if ins.name == "mul" and ins.inputs[0] is ins.inputs[1]:
        return 0.0, math.inf
    rule = _RULES.get(ins.name)
    return ANYTHING if rule is None else rule(*(bounds(i, depth - 1) for i in ins.inputs))


def _constant(ins: Instruction) -> Bounds:
    values = constant_array(ins)
    if values is None or values.size == 0 or not ins.shape.type.is_floating:
        return ANYTHING
    wide = compact(values).astype(np.float64)
    return ANYTHING if np.isnan(wide).any() else (float(wide.min()), float(wide.max()))


def _not_negative(x: Bounds) -> Bounds:
    least = x[0] if x[0] > 0 else max(0.0, -x[1])
    return least, max(abs(x[0]), abs(x[1]))


def _root(x: Bounds) -> Bounds:
    return (math.sqrt(x[0]), math.sqrt(x[1])) if x[0] >= 0 else (0.0, math.inf)


def _sum(x: Bounds) -> Bounds:
    return (x[0] if x[0] >= 0 else -math.inf), math.inf


_RULES: dict[str, Any] = {
    "abs": _not_negative,
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "clip": lambda x, low, high: (min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])),
    "exp": lambda x: (0.0, math.inf),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "reduce_sum": _sum,
    "relu": lambda x: (max(x[0], 0.0), max(x[1], 0.0)),
    "sigmoid": lambda x: (0.0, 1.0),
    "sqrt": _root,
}
