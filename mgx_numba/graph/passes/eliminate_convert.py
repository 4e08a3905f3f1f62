"""Remove type conversions that change nothing."""

from __future__ import annotations

import numpy as np

from ...core.types import Type, finfo
from ..constants import uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import rule_pass

HALVES = frozenset({Type.half_type, Type.bf16_type})
FLOAT8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type})
WIDE = frozenset({Type.float_type, Type.double_type})


def is_elidable(ins: Instruction) -> bool:
    """Return whether an instruction is a conversion that the compiler added."""
    return ins.name == "convert" and bool(ins.op.elidable)  # type: ignore[attr-defined]


def is_exact(source: Type, target: Type) -> bool:
    """Return whether every value of ``source`` is representable in ``target``."""
    if source is target or source is Type.bool_type:
        return True
    if target is Type.bool_type:
        return False
    if source in FLOAT8:
        return target in HALVES or target in WIDE
    if source in HALVES:
        return target in WIDE
    if not target.is_floating:
        return bool(np.can_cast(source.numpy, target.numpy, "safe"))
    if source.is_floating:
        return source is Type.float_type and target is Type.double_type
    # An integer is exact in a float whose significand is as wide; -2**n is, too, being a power of two.
    magnitude = 8 * source.size - source.is_signed
    return target not in FLOAT8 and magnitude <= finfo(target.numpy).nmant + 1


@rule(
    "convert_same_type",
    op("convert", some("x")),
    lambda m: None if m.x.shape.type is m.ins.shape.type else "changes type",
    exact=True,
)
def convert_same_type(m: Match, b: RewriteBuilder) -> object:
    return m.x  # convert[T](x: T) -> x


def _exact_inside(m: Match) -> str | None:
    source, between, target = (i.shape.type for i in (m.x, m.inner, m.ins))
    if not is_exact(source, between):
        return f"{between.name} does not hold every {source.name}"
    integers = source.is_integral and target.is_integral and target is not Type.bool_type
    if integers and between.is_floating and not is_exact(source, target):
        return f"a {between.name} saturates in {target.name}, a {source.name} wraps"
    return None


@rule("nested_convert", op("convert", op("convert", some("x"), bind="inner")), _exact_inside, exact=True)
def nested_convert(m: Match, b: RewriteBuilder) -> object:
    """``convert[T](convert[wider](x)) -> convert[T](x)``."""
    return m.x if m.x.shape.type is m.ins.shape.type else b.op(m.ins.op, m.x)


@rule("narrow_pointwise", op("convert", some("inner")), exact=True)
def narrow_pointwise(m: Match, b: RewriteBuilder) -> object:
    """``convert[half](f(convert[float](x))) -> f(x)`` for a pointwise ``f``: it computes 16-bit floats in float32 and
    rounds once. Other operands are not floats, or single numbers with no more bits. Conversions by the model's author
    stay, because fast math rounds only there."""
    narrow, inner = m.ins.shape.type, m.inner
    if (
        narrow not in HALVES
        or not is_elidable(m.ins)
        or not inner.op.pointwise
        or inner.op.custom
        or inner.name == "convert"
    ):
        return None
    if inner.shape.type is not narrow.compute or len(inner.users) != 1 or inner.module_args or inner.shape.is_dynamic:
        return None
    operands, widened = [], 0
    for x in inner.inputs:
        if is_elidable(x) and x.inputs[0].shape.type is narrow:
            operands.append(x.inputs[0])
            widened += 1
        elif x.shape.type.is_floating:
            value = uniform_value(x)
            if value is None or value.astype(narrow.numpy) != value:
                return None
            operands.append(b.scalar(value.astype(narrow.numpy), x.shape.with_type(narrow)))
        else:
            operands.append(x)
    return b.op(inner.op, *operands) if widened else None


EliminateConvert = rule_pass("eliminate_convert", convert_same_type, nested_convert, narrow_pointwise)
