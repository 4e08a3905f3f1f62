"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.base import make_op
from ..arithmetic import mul_scalar
from .activation import SELU_ALPHA, SELU_GAMMA
from .builder import Builder, rank
from .matmul import is_zero, zero_point
from .node import Node
from .registry import MICROSOFT, register
from .window import AUTO_PAD, check_spatial, read_window


def add_bias(g: Builder, y: Instruction, bias: Instruction | None) -> Instruction:
    """Emit ``y`` [n, c, spatial...] plus one value per channel."""
    if bias is None:
        return y
    channels = y.shape.dims[1]
    if rank(bias) != 1 or not channels.min <= bias.shape.elements <= channels.max:
        raise ShapeError(f"bias must have one value for each of {channels} channels, got {bias.shape}")
    return g.op("add", y, g.broadcast_axis(bias, 1, y))


def convolution(
    g: Builder, node: Node, x: Instruction, w: Instruction, op: str = "convolution", more: Sequence[Instruction] = ()
) -> Instruction:
    """Emit the convolution, without bias, that a node's attributes describe; ``op`` may take more inputs."""
    if rank(w) != rank(x) or w.shape.is_dynamic:
        raise ShapeError(f"weights {w.shape} do not fit an input of {rank(x)} dimensions")
    window = read_window(g, node, x, w.shape.lens[2:])
    if window.kernel != w.shape.lens[2:]:
        raise ParseError(f"kernel_shape {list(window.kernel)} differs from the weights' {list(w.shape.lens[2:])}")
    return g.op(
        op,
        x,
        w,
        *more,
        padding=window.shared_padding,
        stride=window.stride,
        dilation=window.dilation,
        group=node.get_int("group", 1),
        padding_mode=window.padding_mode,
    )


@register("Conv")
def conv(g: Builder, node: Node, x: Instruction, w: Instruction, bias: Instruction | None = None) -> Instruction:
    """Emit cross-correlation plus bias."""
    return add_bias(g, convolution(g, node, x, w), bias)


@register("FusedConv", domain=MICROSOFT)
def fused_conv(
    g: Builder,
    node: Node,
    x: Instruction,
    w: Instruction,
    bias: Instruction | None = None,
    addend: Instruction | None = None,
) -> Instruction:
    """Emit convolution, bias, addend and activation."""
    y = add_bias(g, convolution(g, node, x, w), bias)
    if addend is not None:
        y = g.pointwise("add", y, addend)
    return fused_activation(g, y, node.get_str("activation", ""), node.get_floats("activation_params", ()))


def fused_activation(g: Builder, y: Instruction, name: str, params: Sequence[float]) -> Instruction:
    """Emit the activation function that ONNX Runtime's optimiser has fused; nothing if ``name`` is empty.

    ``params`` are the function's parameters, in the order of ONNX's attributes; missing ones have ONNX's defaults.
    """
    from .recurrent import FUNCTIONS  # late: few models have fused activations

    if name == "Clip" and len(params) == 2:
        return g.pointwise("clip", y, g.like(params[0], y), g.like(params[1], y))
    if name == "Selu":
        alpha, gamma = (*params, *(SELU_ALPHA, SELU_GAMMA)[len(params) :])
        return mul_scalar(g, g.op("elu", y, alpha=alpha), gamma)
    if name and name.lower() not in FUNCTIONS:
        raise UnsupportedError(f"activation {name!r} with parameters {list(params)} is not supported")
    if not name:
        return y
    op, defaults = FUNCTIONS[name.lower()]
    return g.op(make_op(op, **defaults | dict(zip(defaults, params))), y)


@register("NhwcConv", domain=MICROSOFT)
def nhwc_conv(g: Builder, node: Node, x: Instruction, w: Instruction, bias: Instruction | None = None) -> Instruction:
    """Emit the convolution of [n, spatial..., c] with weights [o, kernel..., c]."""
    last = rank(x) - 1
    first = [0, last, *range(1, last)]
    y = add_bias(g, convolution(g, node, g.transpose(x, first), g.transpose(w, first)), bias)
    return g.transpose(y, [0, *range(2, last + 1), 1])


@register("ConvInteger")
def integer_convolution(
    g: Builder,
    node: Node,
    x: Instruction,
    w: Instruction,
    x_zero: Instruction | None = None,
    w_zero: Instruction | None = None,
) -> Instruction:
    """Emit the int32 convolution of 8-bit ``x`` and ``w`` minus their zero points.

    A zero point has one element, or, for ``w``, one element for each output channel.
    """
    if is_zero(g, x_zero) and is_zero(g, w_zero):
        return convolution(g, node, x, w, "quant_convolution")
    x_zero, w_zero = (zero_point(g, *pair) for pair in ((x, x_zero), (w, w_zero)))
    if w_zero.shape.elements > 1:
        w_zero = g.reshape(w_zero, (w_zero.shape.elements, *(1 for _ in range(rank(w) - 1))))
    return convolution(g, node, x, w, "integer_convolution", (x_zero, w_zero))


@register("ConvTranspose")
def conv_transpose(
    g: Builder, node: Node, x: Instruction, w: Instruction, bias: Instruction | None = None
) -> Instruction:
    """Emit transposed convolution; ``output_shape`` or ``output_padding`` extend or cut the result at its ends."""
    spatial = check_spatial(x)
    if rank(w) != rank(x) or w.shape.is_dynamic:
        raise ShapeError(f"weights {w.shape} do not fit an input of {rank(x)} dimensions")
    kernel = w.shape.lens[2:]
    stride = node.get_ints("strides", (1,) * spatial)
    dilation = node.get_ints("dilations", (1,) * spatial)
    extra = node.get_ints("output_padding", (0,) * spatial)
    for name, values, least in (
        ("strides", stride, 1),
        ("dilations", dilation, 1),
        ("output_padding", extra, 0),
    ):
        if len(values) != spatial or any(v < least for v in values):
            raise ParseError(f"{name} {values} must be {spatial} numbers of at least {least}")
    auto = node.get_choice("auto_pad", AUTO_PAD, "NOTSET")
    pads = node.get_ints("pads", (0,) * (2 * spatial)) if auto == "NOTSET" else [0] * (2 * spatial)
    if len(pads) != 2 * spatial or any(v < 0 for v in pads):
        raise ParseError(f"pads {pads} must be {2 * spatial} numbers that are not negative")
    if node.has("output_shape") or auto.startswith("SAME"):
        lens = g.lens(x)[2:]
        full = [
            s * (n - 1) + e + (k - 1) * d + 1
            for n, k, s, d, e in zip(lens, kernel, stride, dilation, extra, strict=False)
        ]
        wanted = node.get_ints("output_shape", [n * s for n, s in zip(lens, stride, strict=False)])
        if len(wanted) != spatial or any(v < 1 for v in wanted):
            raise ParseError(f"output_shape {wanted} must be {spatial} positive numbers")
        pads = _pads_for(full, wanted, auto == "SAME_UPPER")
    begins = pads[:spatial]
    ends = [p - e for p, e in zip(pads[spatial:], extra, strict=False)]
    cut, longer = ([max(0, sign * p) for p in (*begins, *ends)] for sign in (1, -1))
    late: list[int] = []  # cuts after padding, if cutting first would leave no element
    if any(longer) and not x.shape.is_dynamic:
        sizes = zip(x.shape.lens[2:], kernel, stride, dilation, cut, cut[spatial:])
        if any(s * (n - 1) + (k - 1) * d + 1 - first - last < 1 for n, k, s, d, first, last in sizes):
            late, cut = cut, [0] * (2 * spatial)
    y = g.op(
        "convolution_backwards",
        x,
        w,
        padding=tuple(cut[:spatial] if cut[:spatial] == cut[spatial:] else cut),
        stride=tuple(stride),
        dilation=tuple(dilation),
        group=node.get_int("group", 1),
    )
    if any(longer):
        y = g.op("pad", y, pads=(0, 0, *longer[:spatial], 0, 0, *longer[spatial:]))
    if late:
        lens = y.shape.lens[2:]
        last = [n - p for n, p in zip(lens, late[spatial:])]
        y = g.op("slice", y, axes=tuple(range(2, spatial + 2)), starts=tuple(late[:spatial]), ends=tuple(last))
    return add_bias(g, y, bias)


def _pads_for(full: list[int], wanted: list[int], upper: bool) -> list[int]:
    """Return the cuts that reduce the full result to the lengths ``wanted``: before all axes, then after them.

    Zeros that a longer result needs come after it, as in ONNX Runtime and TensorFlow.
    """
    totals = [n - m for n, m in zip(full, wanted, strict=False)]
    begins = [max(0, total // 2 if upper else total - total // 2) for total in totals]
    return [*begins, *(total - begin for total, begin in zip(totals, begins))]
