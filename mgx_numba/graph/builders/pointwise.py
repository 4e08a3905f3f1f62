"""Pointwise operations on operands whose types and lengths differ, and normalisations made of them."""

from __future__ import annotations

from ...core.types import Type
from ..instruction import Instruction
from .base import MacroBuilder, common_type, macro

NAMES = (
    "add div equal fmod greater less logical_and logical_or logical_xor max min mod mul pow prelu sqdiff sub"
    " bitwise_and bitwise_or bitwise_xor"
).split()


@macro(*NAMES, inputs=(2, 2), broadcasted_axis=None)
def binary(e: MacroBuilder, a: Instruction, b: Instruction, broadcasted_axis: int | None) -> Instruction:
    """Both in their common type and lengths.

    With ``broadcasted_axis`` the axes of ``b`` are laid along those of ``a`` from that one on, as in ONNX
    before opset 7.
    """
    if broadcasted_axis is not None:
        axis = broadcasted_axis + (a.shape.ndim if broadcasted_axis < 0 else 0)
        if not 0 <= axis <= a.shape.ndim - b.shape.ndim:
            raise e.fail(f"broadcasted_axis is {broadcasted_axis} for {b.shape.ndim} and {a.shape.ndim} axes")
        b = e.broadcast_axis(b, axis, a)
    return e.pointwise(e.name, a, b)


@macro("where", inputs=(3, 3))
def where(e: MacroBuilder, condition: Instruction, yes: Instruction, no: Instruction) -> Instruction:
    """Elements of ``yes`` where ``condition`` is true, of ``no`` elsewhere."""
    type = common_type([yes.shape.type, no.shape.type])
    values = (e.convert(condition, Type.bool_type), e.convert(yes, type), e.convert(no, type))
    return e.op("where", *e.same_lens(*values))


@macro("batchnorm", inputs=(5, 5), epsilon=1e-5)
def batchnorm(
    e: MacroBuilder,
    x: Instruction,
    scale: Instruction,
    bias: Instruction,
    mean: Instruction,
    variance: Instruction,
    epsilon: float,
) -> Instruction:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` along axis 1 (ONNX BatchNormalization)."""
    if any(v.shape.ndim != 1 for v in (scale, bias, mean, variance)):
        raise e.fail("scale, bias, mean and variance must have one axis")
    spatial = range(1, x.shape.ndim - 1)
    scale, bias, mean, variance = (e.unsqueeze(v, spatial) for v in (scale, bias, mean, variance))
    centred = e.pointwise("sub", x, mean)
    factor = e.pointwise("mul", scale, e.op("rsqrt", e.number("add", variance, epsilon)))
    return e.convert(e.pointwise("add", e.pointwise("mul", centred, factor), bias), x.shape.type)


@macro("mean_variance_normalization", inputs=(1, 1), axes=(0, 2, 3))
def mean_variance_normalization(e: MacroBuilder, x: Instruction, axes: tuple[int, ...]) -> Instruction:
    """``(x - mean) / (standard deviation + 1e-9)`` over ``axes`` (ONNX MeanVarianceNormalization)."""
    mean = e.op("reduce_mean", x, axes=axes)
    centred = e.pointwise("sub", x, mean)
    variance = e.op("reduce_mean", e.op("mul", centred, centred), axes=axes)
    deviation = e.number("add", e.op("sqrt", variance), 1e-9)
    return e.pointwise("div", centred, deviation)
