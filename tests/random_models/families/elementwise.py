"""Pointwise operators with broadcasting, conversions and choices."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from ..builder import FLOATS, INTEGERS, Builder, Value
from .registry import step

__all__ = ["like"]

UNARY = (
    "Abs Neg Relu Tanh Sigmoid Erf Floor Ceil Round Exp Sqrt Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh"
    " Atanh Reciprocal Softplus Softsign Sign Elu Selu Celu LeakyRelu HardSigmoid HardSwish Mish ThresholdedRelu Gelu"
    " Identity"
).split()
SAFE = "Abs Neg Relu Tanh Sigmoid Erf Exp Identity".split()
BINARY = "Add Sub Mul Max Min".split()
COMPARE = "Equal Greater Less GreaterOrEqual LessOrEqual".split()
ALPHA = {"Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid"}


def like(b: Builder, x: Value, type: Any = None) -> Value:
    """A value that broadcasts with ``x``: of the pool, 0-d, with lengths of 1 or of lower rank."""
    type = np.dtype(type or x.type)

    def fits(v: Value) -> bool:
        return v.type == type and all(m == n or 1 in (m, n) for m, n in zip(v.lens[::-1], x.lens[::-1]))

    found = b.value(fits) if b.chance(2) else None
    if found is not None:
        return found
    lens = [1 if b.chance(3) else n for n in x.lens] if b.chance(2) else list(x.lens)
    if b.chance(3):
        lens = lens[b.integer(0, len(lens)) :]
    return b.new(lens, type)


def _floating(v: Value) -> bool:
    return v.floating


def _number(v: Value) -> bool:
    return v.floating or v.integral


@step(4)
def unary(b: Builder) -> Any:
    x = b.tensor()
    if x.type == np.bool_:
        return b.node("Not", [x])
    if x.integral:
        names = ["Identity", "BitwiseNot", "Abs", "Sign", *(["Neg", "Relu"] if x.type.kind == "i" else [])]
        return b.node(b.pick(names), [x])
    op = b.pick(UNARY if b.chance(2) else SAFE)
    attributes: dict[str, Any] = {}
    if op in ALPHA and b.chance(2):
        attributes["alpha"] = b.pick((0.25, 0.5, 2.0))
    if op == "Gelu" and b.chance(2):
        attributes["approximate"] = "tanh"
    return b.node(op, [x], **attributes)


@step()
def shrink(b: Builder) -> Any:
    x = b.tensor(_number)
    return b.node("Shrink", [x], lambd=b.pick((None, 0.25, 1.0, 2.0)), bias=b.pick((None, 0.25, 1.0, -1.0)))


@step(5)
def binary(b: Builder) -> Any:
    x = b.tensor()
    y = like(b, x)
    if b.chance(2):
        x, y = y, x
    if x.type == np.bool_:
        return b.node(b.pick(("And", "Or", "Xor", "Equal")), [x, y])
    if x.floating:
        op = b.pick([*BINARY, "Add", "Mul", "Div", "Pow", "PRelu"])
        if op == "PRelu" and np.broadcast_shapes(x.lens, y.lens) != x.lens:
            return None  # slopes broadcast one way only
        return b.node(op, [x, y])
    op = b.pick([*BINARY, "Add", "Mul", "Div", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"])
    if op in ("Div", "Mod"):
        y = divisor(b, x)
    if op == "BitShift":
        y = b.constant(b.rng.integers(0, 3, x.lens[-1:]), x.type)
        return b.node(op, [x, y], direction=b.pick(("LEFT", "RIGHT"))) if x.type.kind == "u" else None
    return b.node(op, [x, y], fmod=b.integer(0, 1) if op == "Mod" else None)


def divisor(b: Builder, x: Value) -> Value:
    """Integers for ``x`` to be divided by, other than zero and -1 (of the least integer), which end the process."""
    low = -5 if x.type.kind == "i" else 1
    values = b.rng.integers(low, 6, x.lens[b.integer(0, x.rank) :])
    return b.constant(np.where((values == 0) | (values == -1), 3, values), x.type)


@step()
def remainder(b: Builder) -> Any:
    x = b.tensor(lambda v: v.floating and v.finite)
    values = b.rng.integers(1, 9, x.lens[-1:]) * b.rng.choice([-0.25, 0.25], x.lens[-1:])
    return b.node("Mod", [x, b.constant(values, x.type)], fmod=1)


@step(2)
def compare(b: Builder) -> Any:
    x = b.tensor(_number)
    if x.floating and b.chance(4):
        return b.node(b.pick(("IsNaN", "IsInf")), [x])
    return b.node(b.pick(COMPARE), [x, like(b, x)])


@step()
def variadic(b: Builder) -> Any:
    x = b.tensor(_number)
    op = b.pick(("Sum", "Mean", "Max", "Min"))
    return b.node(op, [x, *(like(b, x) for _ in range(b.integer(0, 3)))])


@step(2)
def where(b: Builder) -> Any:
    x = b.tensor()
    return b.node("Where", [like(b, x, np.bool_), x, like(b, x)])


@step()
def clip(b: Builder) -> Any:
    x = b.tensor(_number)
    low, high = sorted(b.integer(0 if x.type.kind == "u" else -4, 5) for _ in range(2))
    bounds = [None if b.chance(4) else b.constant(bound, x.type) for bound in (low, high)]
    return b.node("Clip", [x, *bounds])


@step(3)
def cast(b: Builder) -> Any:
    """Append a conversion of values that the target type can hold; other float-to-integer conversions are undefined."""
    x = b.tensor()
    to = np.dtype(b.pick((*FLOATS, *INTEGERS, np.bool_)))
    if x.floating and to.kind in "iu":
        x = bounded(b, x, 0 if to.kind == "u" else -100, 100)
    return convert(b, x, to) if x is not None else None


def bounded(b: Builder, x: Value, low: float, high: float) -> Value | None:
    """``x`` between bounds; NaN, which has no integer, is what no bound keeps away."""
    if not x.finite:
        return None
    return b.node("Clip", [x, b.constant(low, x.type), b.constant(high, x.type)])


def convert(b: Builder, x: Value, to: np.dtype) -> Value | None:
    if b.chance(4):
        return b.node("CastLike", [x, b.constant(0, to)])
    return b.node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(to))


NARROW = (TensorProto.BFLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT)
FLOAT8 = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)
WHOLE = (TensorProto.INT32, TensorProto.INT8)


@step(3)
def through_a_narrower_type(b: Builder) -> Any:
    """Add an author's conversions, which round; half of the time a reader also reads the unrounded value.

    ONNX Runtime's CPU kernels do little with bfloat16 and float8 but convert to and from them.
    """
    x = b.tensor(_floating)
    between = b.pick((*NARROW, *(FLOAT8 if b.opset >= 19 else ()), *WHOLE))
    if between in WHOLE:
        bounds = bounded(b, x, -100, 100)
        if bounds is None:
            return None
        x = bounds
    back = helper.np_dtype_to_tensor_dtype(x.type)
    y = b.chain(x, [("Cast", {"to": between}), ("Cast", {"to": back})])
    return b.node(b.pick(("Sub", "Add")), [x, y]) if y is not None and b.chance(2) else y


@step()
def polynomial(b: Builder) -> Any:
    """A few operations in a row, which fusion joins."""
    x = b.tensor(_floating)
    for _ in range(b.integer(2, 5)):
        made = b.node(b.pick(SAFE), [x]) if b.chance(2) else b.node(b.pick(BINARY), [x, like(b, x)])
        x = made or x
    return x
