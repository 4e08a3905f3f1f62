"""Arithmetic on lengths, and tensors made from lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from ..builder import FLOATS, INTEGERS, Builder
from .registry import step

__all__ = []


@step()
def shape_of(b: Builder) -> Any:
    x = b.tensor()
    if b.chance(3):
        return b.node("Size", [x])
    if b.opset < 15 or b.chance(2):
        return b.node("Shape", [x])
    return b.node("Shape", [x], start=b.integer(-x.rank, x.rank), end=b.integer(-x.rank, x.rank))


@step(2)
def reshape_by_shape(b: Builder) -> Any:
    """Append the nodes that exporters write for ``view(x.size(0), -1)``."""
    x = b.tensor(lambda v: v.rank > 0 and v.array.size > 0)
    if not x.array.size:
        return None
    shape = b.node("Shape", [x], keep=False)
    axis = b.integer(0, x.rank - 1)
    one = b.node("Gather", [shape, b.ints(axis)], axis=0, keep=False) if shape else None  # a 0-d length
    row = b.node("Unsqueeze", [one, b.ints([0])], keep=False) if one else None
    whole = b.node("Concat", [row, b.ints([-1])], axis=0, keep=False) if row else None
    return b.node("Reshape", [x, whole]) if whole else None


@step()
def expand_by_shape(b: Builder) -> Any:
    x = b.tensor()
    y = b.node("Shape", [x], keep=False)
    scalar = b.new((), x.type)
    return b.node("Expand", [scalar, y]) if y else None


@step()
def length_arithmetic(b: Builder) -> Any:
    """Half of an axis, by dividing its length."""
    x = b.tensor(lambda v: v.rank > 0)
    shape = b.node("Shape", [x], keep=False)
    axis = b.integer(0, x.rank - 1)
    n = b.node("Gather", [shape, b.ints([axis])], axis=0, keep=False) if shape else None
    half = b.node("Div", [n, b.ints([2])], keep=False) if n else None
    end = b.node("Add", [half, b.ints([b.integer(0, 1)])], keep=False) if half else None
    return b.node("Slice", [x, b.ints([0]), end, b.ints([axis])]) if end else None


@step()
def constant_of_shape(b: Builder) -> Any:
    lens = b.lens((0, 3), 60, (1, 2, 3, 4))
    value = numpy_helper.from_array(np.array([b.integer(0, 3)], b.pick((*FLOATS, *INTEGERS, np.bool_))))
    return b.node("ConstantOfShape", [b.ints(lens)], value=value if b.chance(2) else None)


@step()
def range_(b: Builder) -> Any:
    type = b.pick((np.int64, np.int32, np.float32, np.float64, np.int16))
    start, delta = b.integer(-4, 4), b.pick((1, 2, 3, -1, -2))
    limit = start + delta * b.integer(0, 6) + b.integer(0, 1)
    return b.node("Range", [b.constant(v, type) for v in (start, limit, delta)])


@step()
def eye_like(b: Builder) -> Any:
    x = b.tensor(lambda v: v.rank == 2)
    return b.node("EyeLike", [x], k=b.integer(-2, 2)) if x.rank == 2 else None
