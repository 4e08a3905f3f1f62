"""Normalisations: ``batchnorm`` and ``mean_variance_normalization``."""

from __future__ import annotations

from ..instruction import Instruction
from .base import MacroBuilder, macro


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
