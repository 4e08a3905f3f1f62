"""Steps that mix scalars and vectors of one element, and values whose rank varies between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from ..builder import Builder, Value
from .reduction import reduce
from .registry import step

__all__ = ["of_another_rank"]

FEW = ((), (1,), (1,), (1, 1))
"""Lengths of values of one element."""


def of_another_rank(b: Builder, x: Value) -> Value | None:
    """Return a value computed from ``x``, usually of another rank."""
    ways = [lambda: b.node("Unsqueeze", [x, b.ints([0])]), lambda: b.node("Reshape", [x, b.ints([-1])])]
    if x.array.size == 1:
        ways += [lambda: b.node("Reshape", [x, b.ints(np.array(b.pick(FEW), np.int64))])] * 2
        ways += [lambda: b.node("Squeeze", [x])]
    if x.floating or x.type in (np.int32, np.int64):
        ways += [lambda: reduce(b, x, "Sum" if x.integral else "Mean", None, 0)] * 2
    return b.pick(ways)()


def _one(b: Builder) -> Value:
    """Return a value of one element."""
    x = b.value(lambda v: v.array.size == 1 and v.type.kind in "fi")
    if x is None or b.chance(3):
        x = b.new(b.pick(FEW), b.pick((np.float32, np.float32, np.int64)))
    return b.node("Reshape", [x, b.ints(np.array(b.pick(FEW), np.int64))]) or x if b.chance(3) else x


@step(3)
def one_beside_one(b: Builder) -> Any:
    """Add a pointwise operator on two values of one element; its result is a scalar only if both are scalars."""
    x, y = _one(b), _one(b)
    if not y.finite:
        return None  # converting such a value to an integer is undefined
    other = y if y.type == x.type else b.node("Cast", [y], to=helper.np_dtype_to_tensor_dtype(x.type))
    return b.node(b.pick(("Add", "Sub", "Mul", "Max", "Min")), [x, other]) if other else None


@step(3)
def views_of_one(b: Builder) -> Any:
    """Add an operator whose result depends on whether its one-element operand is a scalar or a vector."""
    x = _one(b)
    zero = b.ints(np.zeros(b.pick(((), (1,))), np.int64))
    ways: list[Any] = [
        lambda: b.node("Expand", [x, b.ints(np.array(b.pick(((), (1,), (1, 1), (3,))), np.int64))]),
        lambda: b.node("Squeeze", [x]),
        lambda: b.node("Shape", [x]),
        lambda: b.node("Unsqueeze", [x, b.ints([0])]),
        lambda: b.node("Identity", [x]),
        lambda: b.node("Where", [b.new(b.pick(FEW), np.bool_), x, x]),
        lambda: b.node("Clip", [x, b.constant(-1, x.type), b.constant(1, x.type)]) if b.opset >= 12 else None,
    ]
    if x.rank:
        ways += [
            lambda: b.node("Gather", [x, zero], axis=b.integer(-x.rank, x.rank - 1)),
            lambda: b.node("Slice", [x, b.ints([0]), b.ints([1])]),
            lambda: b.node("Concat", [x, x] if b.chance(2) else [x], axis=0),
            lambda: b.node("Transpose", [x]),
            lambda: b.node("Flatten", [x], axis=b.integer(0, x.rank)),
        ]
    return b.pick(ways)()


@step()
def held(b: Builder) -> Any:
    """Put a value of one element into a sequence or an optional, and take it out again."""
    x = _one(b)
    if b.opset >= 15 and b.chance(2):
        return b.chain(x, [("Optional", {}), ("OptionalGetElement", {})])
    return b.chain(x, [("SequenceConstruct", {}), ("ConcatFromSequence", {"axis": 0, "new_axis": 1})])
