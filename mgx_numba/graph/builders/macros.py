"""The macros, by family: pointwise operations, activations, normalisations, quantisation, products, convolutions and
rearrangements."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from ...core.types import Type, parse_type
from ...errors import OperatorError
from ...ops.window import PaddingMode, auto_padding
from ..einsum import einsum
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


@macro("celu", inputs=(1, 1), alpha=1.0)
def celu(e: MacroBuilder, x: Instruction, alpha: float) -> Instruction:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`` (ONNX Celu)."""
    if alpha == 0:
        raise e.fail("alpha is 0")
    bent = e.number("mul", e.number("sub", e.op("exp", e.number("div", x, alpha)), 1), alpha)
    return e.op("add", e.number("max", x, 0), e.number("min", bent, 0))


@macro("clip", inputs=(1, 3))
def clip(
    e: MacroBuilder, x: Instruction, low: Instruction | None = None, high: Instruction | None = None
) -> Instruction:
    """``min(max(low, x), high)`` without the bounds that are absent or ``undefined`` (ONNX Clip)."""
    low, high = (None if b is None or b.name == "undefined" else b for b in (low, high))
    if low is not None and high is not None:
        return e.pointwise("clip", x, low, high)
    if low is not None:
        return e.pointwise("max", x, low)
    return x if high is None else e.pointwise("min", x, high)


@macro("gelu_quick", inputs=(1, 1), alpha=1.702)
def gelu_quick(e: MacroBuilder, x: Instruction, alpha: float) -> Instruction:
    """``x * sigmoid(alpha * x)``."""
    return e.op("mul", x, e.op("sigmoid", e.number("mul", x, alpha)))


@macro("gelu_erf", inputs=(1, 1))
def gelu_erf(e: MacroBuilder, x: Instruction) -> Instruction:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``."""
    outer = e.number("add", e.op("erf", e.number("mul", x, 1 / sqrt(2))), 1)
    return e.op("mul", e.number("mul", x, 0.5), outer)  # ``2 * x`` may overflow


@macro("gelu_tanh", inputs=(1, 1), fast=False)
def gelu_tanh(e: MacroBuilder, x: Instruction, fast: bool) -> Instruction:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``; ``fast`` factors the cube."""
    square = e.op("mul", x, x)
    if fast:
        inner = e.op("mul", x, e.number("add", e.number("mul", square, 0.044715), 1))
    else:
        inner = e.op("add", x, e.number("mul", e.op("mul", square, x), 0.044715))
    bend = e.op("tanh", e.number("mul", inner, sqrt(2 / pi)))
    return e.op("mul", e.number("mul", x, 0.5), e.number("add", bend, 1))


@macro("gelu_split", inputs=(1, 1))
def gelu_split(e: MacroBuilder, x: Instruction) -> Instruction:
    """First half of the last axis times ``gelu_erf`` of its second half (BiasSplitGelu)."""
    axis, length = x.shape.ndim - 1, e.lens(x)[-1]
    if length % 2:
        raise e.fail(f"the last axis has odd length {length}")
    left, right = e.split(x, axis, [length // 2, length // 2])
    return e.op("mul", left, gelu_erf(e, right))


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


@macro("quantizelinear", inputs=(2, 3), axis=1, block_size=0, output_type="")
def quantizelinear(
    e: MacroBuilder,
    x: Instruction,
    scale: Instruction,
    zero: Instruction | None = None,
    *,
    axis: int,
    block_size: int,
    output_type: str,
) -> Instruction:
    """``saturate(round(x / scale) + zero)`` (ONNX QuantizeLinear); ``output_type`` is a type's name."""
    try:
        wanted = parse_type(output_type) if output_type else None
    except ValueError as error:
        raise OperatorError(f"macro {e.name}: output_type: {error}") from None
    parameters = [_spread(e, x, p, axis, block_size) for p in (scale, zero) if p is not None]
    if not x.shape.type.is_floating:
        x = e.convert(x, scale.shape.type)
    if zero is not None or wanted is None:
        return e.op("quantizelinear", x, *parameters)
    return e.op("quantizelinear", x, *parameters, out_type=wanted)


@macro("dequantizelinear", inputs=(2, 3), axis=1, block_size=0)
def dequantizelinear(
    e: MacroBuilder,
    x: Instruction,
    scale: Instruction,
    zero: Instruction | None = None,
    *,
    axis: int,
    block_size: int,
) -> Instruction:
    """``(x - zero) * scale`` (ONNX DequantizeLinear)."""
    return e.op("dequantizelinear", x, *(_spread(e, x, p, axis, block_size) for p in (scale, zero) if p is not None))


def _spread(e: MacroBuilder, x: Instruction, parameter: Instruction, axis: int, block: int) -> Instruction:
    """A scale or zero point with the lengths of ``x``; it has one value, or one for each place or block."""
    lens = e.lens(x)
    count = e.lens(parameter)
    if parameter.shape.elements == 1:
        return e.broadcast(parameter, lens)
    if not -len(lens) <= axis < len(lens):
        raise e.fail(f"axis is {axis} for {len(lens)} axes")
    axis %= len(lens)
    if not block and len(count) == 1:
        return e.broadcast_axis(parameter, axis, x)
    if len(count) != len(lens):
        raise e.fail(f"scale or zero point has {len(count)} axes, expected 1 or {len(lens)}")
    if not block:
        block = -(-lens[axis] // count[axis])
    if count[axis] != -(-lens[axis] // block):
        raise e.fail(f"{count[axis]} blocks of {block} for length {lens[axis]} of axis {axis}")
    wide = e.broadcast(e.unsqueeze(parameter, [axis + 1]), (*count[: axis + 1], block, *count[axis + 1 :]))
    full = e.reshape(wide, (*count[:axis], count[axis] * block, *count[axis + 1 :]))
    return e.slice(full, axis, 0, lens[axis])


@macro("bias_uint8", inputs=(1, 2))
def bias_uint8(e: MacroBuilder, x: Instruction, zero: Instruction | None = None) -> list[Instruction]:
    """``x`` and its zero point as int8, less 128 if ``x`` is uint8."""
    values = [v for v in (x, zero) if v is not None]
    if x.shape.type is not Type.uint8_type:
        return values
    return [e.convert(e.number("sub", e.convert(v, Type.int16_type), 128), Type.int8_type) for v in values]


@macro("dot", "quant_dot", inputs=(2, 2))
def dot(e: MacroBuilder, a: Instruction, b: Instruction) -> Instruction:
    """NumPy's ``matmul``: vectors are made matrices, outer axes broadcast."""
    return e.matmul(a, b, e.name)


@macro("gemm", inputs=(2, 3), alpha=1.0, beta=1.0, transA=False, transB=False)
def gemm(
    e: MacroBuilder,
    a: Instruction,
    b: Instruction,
    c: Instruction | None = None,
    *,
    alpha: float,
    beta: float,
    transA: bool,
    transB: bool,
) -> Instruction:
    """``alpha * a' * b' + beta * c``, ``c`` broadcast to the product (ONNX Gemm)."""
    type = a.shape.type
    a, b = (e.swap_last(x) if t else x for x, t in ((a, transA), (b, transB)))
    if alpha != 1:
        a = e.number("mul", a, alpha)
    product = e.op("dot", a, b)
    if c is None or beta == 0:
        return product
    c = c if beta == 1 else e.number("mul", c, beta)
    return e.convert(e.pointwise("add", product, c), type)


MOST_INPUTS = 26  # letters of the alphabet


@macro("einsum", inputs=(1, MOST_INPUTS), equation="")
def einsum_macro(e: MacroBuilder, *operands: Instruction, equation: str) -> Instruction:
    """Compute the equation (NumPy's notation, ellipsis included), operands contracted pairwise."""
    return einsum(e, equation, operands, lambda message: OperatorError(f"macro einsum: {message}"))


_AUTO = {"SAME_UPPER": PaddingMode.same_upper, "SAME_LOWER": PaddingMode.same_lower}


@macro(
    "convolution",
    "quant_convolution",
    inputs=(2, 3),
    auto_pad="NOTSET",
    paddings=(),
    strides=(),
    dilations=(),
    group=1,
    padding_mode=0,
)
def convolution(
    e: MacroBuilder,
    x: Instruction,
    w: Instruction,
    bias: Instruction | None = None,
    *,
    auto_pad: str,
    paddings: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
    padding_mode: int,
) -> Instruction:
    """Convolution, plus a bias along axis 1.

    ``auto_pad`` is ONNX's. Lengths that are known give paddings as numbers, dynamic ones a ``padding_mode``.
    Absent ``paddings`` are 0, absent ``strides`` and ``dilations`` 1.
    """
    axes = x.shape.ndim - 2
    strides, dilations = strides or (1,) * axes, dilations or (1,) * axes
    mode = PaddingMode(padding_mode)
    if auto_pad not in ("NOTSET", "VALID", *_AUTO):
        raise e.fail(f"auto_pad is {auto_pad!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if auto_pad != "NOTSET" and any(paddings):
        raise e.fail(f"auto_pad is {auto_pad} and paddings are given: {list(paddings)}")
    if auto_pad in _AUTO:
        mode, paddings = _same(e, x, w, _AUTO[auto_pad], strides, dilations)
    attributes = {
        "padding": paddings or (0,) * axes,
        "stride": strides,
        "dilation": dilations,
        "group": group,
    }
    result = e.op(e.name, x, w, padding_mode=mode, **attributes)
    if bias is None:
        return result
    return e.pointwise("add", result, e.broadcast_axis(bias, 1, result))


def _same(
    e: MacroBuilder,
    x: Instruction,
    w: Instruction,
    mode: PaddingMode,
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[PaddingMode, tuple[int, ...]]:
    if x.shape.is_dynamic:
        return mode, ()
    kernel = e.lens(w)[2:]
    if not len(x.shape.lens) - 2 == len(kernel) == len(strides) == len(dilations):
        raise e.fail(f"{len(kernel)} kernel axes, {len(strides)} strides and {len(dilations)} dilations for {x.shape}")
    pairs = auto_padding(mode, x.shape.lens[2:], kernel, strides, dilations)
    return PaddingMode.default_, tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)


@macro("tile", inputs=(1, 1), repeats=())
def tile(e: MacroBuilder, x: Instruction, repeats: tuple[int, ...]) -> Instruction:
    """``x`` repeated ``repeats[k]`` times along axis ``k`` (ONNX Tile)."""
    lens = e.lens(x)
    if len(repeats) != len(lens) or any(n < 0 for n in repeats):
        raise e.fail(f"repeats are {list(repeats)}, expected {len(lens)} numbers that are not negative")
    if all(n == 1 for n in repeats):
        return x
    split = e.unsqueeze(x, [2 * k for k in range(len(lens))])
    wide = e.broadcast(split, [n for pair in zip(repeats, lens) for n in pair])
    return e.reshape(wide, [n * k for n, k in zip(repeats, lens)])


@macro("rotary_embedding", inputs=(3, 3), interleaved=False)
def rotary_embedding(
    e: MacroBuilder, x: Instruction, cos: Instruction, sin: Instruction, interleaved: bool
) -> Instruction:
    """Rotary position embedding of the last axis (Su et al. 2021, RoFormer).

    ``cos`` and ``sin`` broadcast to ``x``, with half of its last length or all of it. Element ``k`` is
    rotated with element ``k + half``, or with its neighbour when ``interleaved``.
    """
    lens = e.lens(x)
    half = lens[-1] // 2
    if lens[-1] % 2:
        raise e.fail(f"the last axis has odd length {lens[-1]}")
    axis = len(lens) - 1
    first, second = _halves(e, x, axis, half, interleaved)
    angles = []
    for values in (cos, sin):
        if e.lens(values)[-1] not in (half, lens[-1]):
            raise e.fail(f"cos and sin have {e.lens(values)[-1]} values for a last axis of {lens[-1]}")
        whole = e.lens(values)[-1] == lens[-1]
        last = values.shape.ndim - 1
        angles.append(_halves(e, values, last, half, interleaved)[0] if whole else values)
    cosine, sine = angles
    left = e.op("sub", *e.common(e.pointwise("mul", first, cosine), e.pointwise("mul", second, sine)))
    right = e.op("add", *e.common(e.pointwise("mul", second, cosine), e.pointwise("mul", first, sine)))
    if not interleaved:
        return e.op("concat", left, right, axis=axis)
    pairs = [e.unsqueeze(v, [axis + 1]) for v in (left, right)]
    return e.reshape(e.op("concat", *pairs, axis=axis + 1), lens)


def _halves(
    e: MacroBuilder, x: Instruction, axis: int, half: int, interleaved: bool
) -> tuple[Instruction, Instruction]:
    """The elements that are rotated with each other: even and odd ones, or the first and the second half."""
    if not interleaved:
        left, right = e.split(x, axis, [half, half])
        return left, right
    pairs = e.reshape(x, [*e.lens(x)[:-1], half, 2])
    left, right = (e.squeeze(member, [axis + 1]) for member in e.split(pairs, axis + 1, [1, 1]))
    return left, right
