"""Normalisations as single operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .convolution import image
from .registry import step

__all__ = []


def _rows(v: Value) -> bool:
    return v.floating and v.finite and v.rank >= 2 and v.array.size > 0


def _per_channel(b: Builder, x: Value, low: float = -2.0) -> Value:
    return b.constant(b.rng.uniform(low, 2, x.lens[1]), x.type)


@step()
def batch_norm(b: Builder) -> Any:
    x = image(b) if b.chance(2) else b.tensor(_rows)
    if x.rank < 2:
        return None
    parts = [_per_channel(b, x), _per_channel(b, x), _per_channel(b, x), _per_channel(b, x, 0.1)]
    return b.node("BatchNormalization", [x, *parts], epsilon=b.pick((1e-5, 1e-2)))


@step()
def instance_norm(b: Builder) -> Any:
    x = image(b)
    return b.node("InstanceNormalization", [x, _per_channel(b, x), _per_channel(b, x)], epsilon=b.pick((1e-5, 1e-2)))


@step(2)
def layer_norm(b: Builder) -> Any:
    x = b.tensor(_rows)
    if not _rows(x) or b.opset < 17:
        return None
    axis = b.integer(1, x.rank - 1)
    scale = b.new(x.lens[axis:], x.type, special=False)
    bias = b.new(x.lens[axis:], x.type, special=False) if b.chance(2) else None
    return b.node(
        "LayerNormalization",
        [x, scale, bias],
        axis=axis - x.rank if b.chance(2) else axis,
        epsilon=b.pick((1e-5, 1e-2)),
    )


@step()
def rms_norm(b: Builder) -> Any:
    x = b.tensor(_rows)
    if not _rows(x):
        return None
    scale = b.new(x.lens[-1:], x.type, special=False)
    if b.opset >= 23:
        return b.node("RMSNormalization", [x, scale], axis=-1, epsilon=1e-2)
    return b.node("SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-2)


@step()
def skip_layer_norm(b: Builder) -> Any:
    x = b.tensor(lambda v: _rows(v) and v.rank == 3 and v.type == np.float32, np.float32)
    if not _rows(x) or x.rank != 3 or x.type != np.float32:
        return None
    skip = b.new(x.lens, x.type, special=False)
    rows = [b.new(x.lens[-1:], x.type, special=False) for _ in range(b.integer(1, 3))]
    if b.chance(2):
        return b.node("SkipLayerNormalization", [x, skip, *rows], domain="com.microsoft", epsilon=1e-2)
    count = b.pick((1, 4))
    name = "SkipSimplifiedLayerNormalization"  # whose mean ONNX Runtime leaves as the memory was
    return b.outputs(name, [x, skip, rows[0]], count, missing=(1, 2), domain="com.microsoft", epsilon=1e-2)


@step()
def group_norm(b: Builder) -> Any:
    x = image(b, lambda v: v.type == np.float32)  # of double, ONNX Runtime normalises in float
    c = x.lens[1]
    groups = b.pick([g for g in (1, 2, 3, c) if c % g == 0])
    if b.opset < 21 or x.type == np.float64:
        return None
    return b.node("GroupNormalization", [x, _per_channel(b, x), _per_channel(b, x)], num_groups=groups, epsilon=1e-2)


@step()
def lrn(b: Builder) -> Any:
    x = image(b, lambda v: v.type == np.float32)
    return b.node("LRN", [x], size=b.pick((1, 3, 5)), alpha=b.pick((1e-4, 0.5)), bias=b.pick((1.0, 2.0)))


@step()
def lp_norm(b: Builder) -> Any:
    x = b.tensor(_rows)
    return b.node("LpNormalization", [x], axis=b.integer(-x.rank, x.rank - 1), p=b.integer(1, 2)) if x.rank else None


@step()
def mean_variance(b: Builder) -> Any:
    x = image(b, lambda v: v.rank == 4 and v.floating)
    return (
        b.node("MeanVarianceNormalization", [x], axes=b.pick(([0, 2, 3], [1, 2, 3], [0, 1, 2, 3])))
        if x.rank == 4
        else None
    )
