"""Reductions, running sums and the softmax family."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .elementwise import like
from .registry import step

__all__ = ["reduce"]

REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare".split()


def _number(v: Value) -> bool:
    return v.floating or v.integral


def reduce(
    b: Builder, x: Value, op: str, axes: list[int] | None, keepdims: int, noop: int | None = None
) -> Value | None:
    """A reduction with its axes where the operator set has them."""
    if op == "Prod" and x.integral:
        magnitudes = np.maximum(np.abs(x.array.astype(np.float64)), 1)
        if magnitudes.prod() > np.iinfo(x.type).max:
            return None  # what is left of a product that overflows is left open
    if op == "LogSumExp" and x.integral:
        return None  # just beside an integer, which rounding reaches or not
    op = f"Reduce{op}"
    if b.opset >= (13 if op == "ReduceSum" else 18):
        given = [] if axes is None else [b.ints(axes)]
        return b.node(op, [x, *given], keepdims=keepdims, noop_with_empty_axes=noop)
    return b.node(op, [x], axes=axes or None, keepdims=keepdims)


def some_axes(b: Builder, x: Value) -> list[int]:
    return [a - x.rank if b.chance(3) else a for a in b.subset(x.rank)]


@step(4)
def reduction(b: Builder) -> Any:
    x = b.tensor(_number)
    if b.chance(8):
        return reduce(b, x, b.pick(REDUCTIONS), None if b.chance(2) else [], b.integer(0, 1), b.integer(0, 1))
    return reduce(b, x, b.pick(REDUCTIONS), some_axes(b, x), b.integer(0, 1))


@step(2)
def normalise(b: Builder) -> Any:
    """A reduction combined with its input."""
    x = b.tensor(_number)
    r = reduce(b, x, b.pick(REDUCTIONS[:5]), some_axes(b, x), 1)
    if r is None:
        return None
    if r.floating and b.chance(2):
        r = b.node(b.pick(("Abs", "Relu", "Exp")), [r]) or r
    return b.node(b.pick(("Sub", "Add", "Mul", *(["Div"] if x.floating else []))), [x, r])


@step()
def running_sum(b: Builder) -> Any:
    x = b.tensor(lambda v: _number(v) and v.rank > 0)
    axis = b.ints(b.integer(-x.rank, x.rank - 1), b.pick(("int32", "int64")))
    return b.node("CumSum", [x, axis], exclusive=b.integer(0, 1), reverse=b.integer(0, 1))


@step(2)
def softmax(b: Builder) -> Any:
    x = b.tensor(lambda v: v.floating and v.rank > 0)
    op = b.pick(("Softmax", "Softmax", "LogSoftmax", *(["Hardmax"] if x.finite else [])))  # the largest of NaN is none
    return b.node(op, [x], axis=b.integer(-x.rank, x.rank - 1))


@step()
def softmax_by_hand(b: Builder) -> Any:
    """Append a softmax as elementary operations, as some exporters write it."""
    x = b.tensor(lambda v: v.floating and v.rank > 0)
    axes = [b.integer(-x.rank, x.rank - 1)]
    top = reduce(b, x, "Max", axes, 1)
    shifted = b.node("Sub", [x, top]) if top else None
    e = b.node("Exp", [shifted]) if shifted else None
    total = reduce(b, e, "Sum", axes, 1) if e else None
    return b.node("Div", [e, total]) if total else None


@step()
def layer_norm_by_hand(b: Builder) -> Any:
    x = b.tensor(lambda v: v.floating and v.rank > 0)
    axes = some_axes(b, x)
    mean = reduce(b, x, "Mean", axes, 1)
    centred = b.node("Sub", [x, mean]) if mean else None
    if centred is None:
        return None
    square = b.node("Mul", [centred, centred]) if b.chance(2) else b.node("Pow", [centred, b.constant(2, x.type)])
    variance = reduce(b, square, "Mean", axes, 1) if square else None
    eps = b.node("Add", [variance, b.constant(0.25, x.type)]) if variance else None
    root = b.node("Sqrt", [eps]) if eps else None
    normal = b.node("Div", [centred, root]) if root else None
    return b.node("Mul", [normal, like(b, x)]) if normal else None
