"""Layers shared by several models, each as the nodes that PyTorch's exporter makes of it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from bench.models.builder import GraphBuilder

SILU_GAIN = 1.46
"""3 / sqrt(E[silu(3 z)^2]) for standard normal z: layers keep a standard deviation near 3."""


def conv(
    g: GraphBuilder,
    x: str,
    channels_in: int,
    channels_out: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = True,
    bias_mean: ArrayLike = 0.0,
    gain: float = math.sqrt(2.0),
) -> str:
    """Append a square convolution, NCHW; `padding` defaults to kernel // 2, `gain` suits the activation that follows.

    `bias_mean` is the mean of the random bias: a scalar, or an array of `channels_out` values.
    """
    pad = kernel // 2 if padding is None else padding
    fan_in = channels_in // groups * kernel * kernel
    weight = g.normal(channels_out, channels_in // groups, kernel, kernel, std=gain / math.sqrt(fan_in))
    inputs = [x, g.weight("weight", weight)]
    if bias:
        offset = np.asarray(bias_mean, dtype=np.float32)
        inputs.append(g.weight("bias", g.normal(channels_out, std=0.05) + offset))
    return g.node(
        "Conv",
        *inputs,
        dilations=[1, 1],
        group=groups,
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        strides=[stride, stride],
    )


def batch_norm(g: GraphBuilder, x: str, channels: int, epsilon: float = 1e-5) -> str:
    """Inference-mode batch normalization with statistics near, but not at, zero mean and unit variance."""
    return g.node(
        "BatchNormalization",
        x,
        g.weight("weight", g.uniform(channels, low=0.8, high=1.2)),
        g.weight("bias", g.normal(channels, std=0.1)),
        g.weight("running_mean", g.normal(channels, std=0.1)),
        g.weight("running_var", g.uniform(channels, low=0.8, high=1.2)),
        epsilon=epsilon,
        momentum=0.9,
    )


def silu(g: GraphBuilder, x: str) -> str:
    return g.node("Mul", x, g.node("Sigmoid", x))


def linear(g: GraphBuilder, x: str, features_in: int, features_out: int, *, gain: float = 1.0) -> str:
    """`nn.Linear` on an input of rank 3 or more: MatMul by the transposed weight, then Add, bias first."""
    weight = g.normal(features_in, features_out, std=gain / math.sqrt(features_in))
    product = g.node("MatMul", x, g.weight("weight_t", weight))
    return g.node("Add", g.weight("bias", g.normal(features_out, std=0.02)), product)


def gemm(g: GraphBuilder, x: str, features_in: int, features_out: int, *, gain: float = 1.0) -> str:
    """`nn.Linear` on a matrix: Gemm with transB=1."""
    weight = g.weight("weight", g.normal(features_out, features_in, std=gain / math.sqrt(features_in)))
    bias = g.weight("bias", g.normal(features_out, std=0.02))
    return g.node("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)


def gelu_erf(g: GraphBuilder, x: str) -> str:
    """x / sqrt(2), Erf, + 1, * x, * 0.5: exact GELU (Hendrycks and Gimpel, 2016) as five nodes."""
    shifted = g.node("Add", g.node("Erf", g.node("Div", x, g.const(math.sqrt(2.0)))), g.const(1.0))
    return g.node("Mul", g.node("Mul", x, shifted), g.const(0.5))


def gelu_tanh(g: GraphBuilder, x: str) -> str:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) as GPT-2 writes it, eight nodes."""
    half = g.node("Mul", x, g.const(0.5))
    cubic = g.node("Mul", g.node("Pow", x, g.const(3.0)), g.const(0.044715))
    inner = g.node("Mul", g.node("Add", x, cubic), g.const(math.sqrt(2.0 / math.pi)))
    return g.node("Mul", half, g.node("Add", g.node("Tanh", inner), g.const(1.0)))


def _layer_norm_weights(g: GraphBuilder, width: int) -> tuple[str, str]:
    scale = g.weight("weight", g.normal(width, std=0.1, mean=1.0))
    return scale, g.weight("bias", g.normal(width, std=0.1))


def layer_norm_op(g: GraphBuilder, x: str, width: int, epsilon: float = 1e-5) -> str:
    """LayerNormalization over the last axis, one node (opset 17)."""
    return g.node("LayerNormalization", x, *_layer_norm_weights(g, width), axis=-1, epsilon=epsilon)


def layer_norm_nodes(g: GraphBuilder, x: str, width: int, epsilon: float = 1e-12) -> str:
    """Layer normalization over the last axis in nine nodes, as exported before opset 17."""
    centred = g.node("Sub", x, g.node("ReduceMean", x, axes=[-1], keepdims=1))
    square = g.node("Pow", centred, g.const(2.0))
    variance = g.node("ReduceMean", square, axes=[-1], keepdims=1)
    deviation = g.node("Sqrt", g.node("Add", variance, g.const(epsilon)))
    scale, bias = _layer_norm_weights(g, width)
    return g.node("Add", g.node("Mul", g.node("Div", centred, deviation), scale), bias)


def recurrent(
    g: GraphBuilder,
    op_type: str,
    x: str,
    features_in: int,
    hidden: int,
    state: list[str],
) -> tuple[str, list[str]]:
    """One bidirectional LSTM or GRU layer with PyTorch's weight scale, U(-1/sqrt(hidden), 1/sqrt(hidden)).

    `x` is [steps, batch, features_in]; `state` holds the initial states, each [2, batch, hidden] (LSTM: h and
    c, GRU: h). Returns the sequence as [steps, batch, 2 * hidden] and the final states.
    """
    gates = 4 if op_type == "LSTM" else 3
    bound = 1.0 / math.sqrt(hidden)
    weights = [
        g.weight(name, g.uniform(*dims, low=-bound, high=bound))
        for name, dims in (
            ("W", (2, gates * hidden, features_in)),
            ("R", (2, gates * hidden, hidden)),
            ("B", (2, 2 * gates * hidden)),
        )
    ]
    attrs = {"linear_before_reset": 1} if op_type == "GRU" else {}
    sequence, *final = g.nodes(
        op_type,
        x,
        *weights,
        "",
        *state,
        count=1 + len(state),
        direction="bidirectional",
        hidden_size=hidden,
        **attrs,
    )
    by_step = g.node("Transpose", sequence, perm=[0, 2, 1, 3])
    return g.node("Reshape", by_step, g.ints(0, 0, -1)), final


def zero_state(g: GraphBuilder, batch: int, hidden: int) -> str:
    """The all-zero initial state of one bidirectional layer, a constant as in an export of fixed batch."""
    return g.const(np.zeros((2, batch, hidden)))
