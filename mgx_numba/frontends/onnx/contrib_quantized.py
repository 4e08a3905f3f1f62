"""Quantised operators without a counterpart in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...dataclass import dataclass
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .cast import as_bytes, nearest_float, powers_below
from .contrib import unpacked
from .contrib_attention import attend_projected
from .matmul import matmul_integer, scaled_integer_product
from .node import Node
from .qlinear import quantised, requantize
from .quantization import along_axis, dynamic_quantize
from .registry import MICROSOFT, register
from .tensors import elem_name


@register("QGemm", domain=MICROSOFT)
def qgemm(
    g: Builder,
    node: Node,
    a: Instruction,
    a_scale: Instruction,
    a_zero: Instruction,
    b: Instruction,
    b_scale: Instruction,
    b_zero: Instruction,
    c: Instruction | None = None,
    y_scale: Instruction | None = None,
    y_zero: Instruction | None = None,
) -> Instruction:
    """Emit ``alpha * a' * b'`` of 8-bit matrices plus ``c``, whose unit is ``alpha`` times the product of the scales.

    ``b`` has scales per tensor or per column of the product, which is float32 without ``y_scale``.
    """
    if rank(a) != 2 or rank(b) != 2:
        raise ShapeError(f"inputs A and B have {rank(a)} and {rank(b)} dimensions, expected 2")
    a, b = (g.swap_last(v) if node.get_bool(name) else v for v, name in ((a, "transA"), (b, "transB")))
    sums = matmul_integer(g, a, b, a_zero, b_zero)
    sums = g.convert(sums if c is None else g.pointwise("add", sums, c), Type.float_type)
    scale = g.pointwise("mul", g.reshape(a_scale, ()), b_scale)
    scale = g.pointwise("mul", scale, g.like(node.get_float("alpha", 1.0), scale))
    if y_scale is not None:
        zero = y_zero if y_zero is not None else g.literal(np.zeros((), np.uint8))
        return requantize(g, sums, scale, y_scale, zero, axis=-1)
    return g.pointwise("mul", sums, g.reshape(scale, ()) if scale.shape.elements == 1 else scale)


@register("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    g: Builder,
    node: Node,
    a: Instruction,
    b: Instruction,
    b_scale: Instruction,
    b_zero: Instruction | None = None,
    bias: Instruction | None = None,
) -> Instruction:
    """Quantise ``a`` to uint8 by its range and emit its product with the 8-bit ``b``, in float32."""
    codes, scale, zero = dynamic_quantize(g, a)
    return scaled_integer_product(g, codes, b, scale, b_scale, zero, b_zero, bias)


@quantised("QLinearSoftmax", result_zero=True)
def qlinear_softmax(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit softmax along ``axis``; before operator set 13 (``opset``) over all axes from ``axis`` on."""
    axis = g.axis(node.get_int("axis", -1), rank(x))
    if node.get_int("opset") >= 13:
        return g.op("softmax", x, axis=axis)
    lens = g.lens(x)
    rows = g.reshape(x, (int(np.prod(lens[:axis])), int(np.prod(lens[axis:]))))
    return g.reshape(g.op("softmax", rows, axis=1), lens)


@quantised("QLinearWhere", plain=1, tensors=2, zeros=True, result_zero=True)
def qlinear_where(g: Builder, node: Node, condition: Instruction, x: Instruction, y: Instruction) -> Instruction:
    """Emit elements of either tensor."""
    return g.pointwise("where", condition, x, y)


@quantised("QLinearReduceMean")
def qlinear_reduce_mean(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit means over ``axes``, by default over all axes."""
    axes = g.axes(node.get_ints("axes", ()), rank(x)) or list(range(rank(x)))
    return g.reduce("reduce_mean", x, axes, keep=node.get_bool("keepdims", True))


@register("QAttention", domain=MICROSOFT)
def qattention(
    g: Builder,
    node: Node,
    x: Instruction,
    weights: Instruction,
    bias: Instruction,
    x_scale: Instruction,
    w_scale: Instruction,
    mask: Instruction | None = None,
    x_zero: Instruction | None = None,
    w_zero: Instruction | None = None,
    past: Instruction | None = None,
) -> list[Instruction]:
    """Emit com.microsoft's Attention with projections as products of 8-bit integers."""
    node.refuse("past_present_share_buffer", 0)
    projected = scaled_integer_product(g, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
    return attend_projected(g, node, projected, mask, past, None)


@register("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    g: Builder,
    node: Node,
    data: Instruction,
    indices: Instruction,
    scales: Instruction,
    zeros: Instruction | None = None,
) -> Instruction:
    """Gather elements of a tensor quantised in blocks along ``quantize_axis``, in the scales' type.

    Elements are int4 or uint4, or ``bits`` 2, 4 or 8 packed in bytes along the last axis. Without zero points, packed
    elements use the middle of their range, int4 and uint4 use 0.
    """
    block, bits = node.get_int("block_size", 128), node.get_int("bits", 4)
    if block < 16 or block & (block - 1):
        raise ParseError(f"block_size is {block}, expected a power of two of at least 16")
    if data.shape.type.is_narrow:
        data, zeros = as_bytes(g, data), None if zeros is None else as_bytes(g, zeros)
    else:
        if data.shape.type is not Type.uint8_type or bits not in (2, 4, 8):
            raise UnsupportedError(
                f"data is {data.shape} of {bits} bits; int4, uint4 and bytes of 2, 4 or 8 bits are known"
            )
        data, zeros = unpacked(g, data, bits), None if zeros is None else unpacked(g, zeros, bits)
        if zeros is None:
            zeros = g.broadcast(g.literal(np.uint8(1 << (bits - 1))), g.lens(scales))
        elif g.lens(zeros) != g.lens(scales):  # an odd number of blocks, in bytes
            zeros = g.slice(zeros, rank(zeros) - 1, 0, g.lens(scales)[-1])
    axis = g.axis(node.get_int("quantize_axis", 1), rank(data), "quantize_axis")
    parts = [v for v in (data, along_axis(g, scales, data, axis, block)) if v is not None]
    if zeros is not None:
        parts.append(along_axis(g, zeros, data, axis, block))
    wide = g.op("dequantizelinear", *parts)
    return g.op("gather", wide, indices, axis=g.axis(node.get_int("gather_axis", 0), rank(data), "gather_axis"))


@dataclass(frozen=True)
class ElementFormat:
    """A narrow floating-point format of the OCP Microscaling Formats (MX) Specification 1.0.

    Its fields are the number of fraction bits, the exponents of the smallest normal number and of the largest power of
    two, and the largest number.
    """

    fraction: int
    least: int
    largest_power: int
    most: float


FORMATS = {
    "fp4_e2m1": ElementFormat(1, 0, 2, 6.0),
    "fp6_e2m3": ElementFormat(3, 0, 2, 7.5),
    "fp6_e3m2": ElementFormat(2, -2, 4, 28.0),
    "fp8_e4m3": ElementFormat(3, -6, 8, 448.0),
    "fp8_e5m2": ElementFormat(2, -14, 15, 57344.0),
    "int8": ElementFormat(6, 0, 0, 127 / 64),  # steps of 1/64 everywhere
}
_OF_OUTPUT = {"float4e2m1": "fp4_e2m1", "float8e4m3fn": "fp8_e4m3", "float8e5m2": "fp8_e5m2", "int8": "int8"}
HALF_TO_EVEN = 2
"""Quark's value of ``rounding_mode`` for rounding half to even."""


def _in_blocks(g: Builder, x: Instruction, axis: int, size: int) -> Instruction:
    """Split an axis of ``x`` into blocks, the last zero-padded: [..., blocks, size, ...]."""
    lens = g.lens(x)
    blocks = -(-lens[axis] // size)
    missing = blocks * size - lens[axis]
    if missing:
        pads = [0] * (2 * len(lens))
        pads[len(lens) + axis] = missing
        x = g.op("pad", x, pads=tuple(pads))
    return g.reshape(x, (*lens[:axis], blocks, size, *lens[axis + 1 :]))


def _block_scales(g: Builder, blocks: Instruction, axis: int, format: ElementFormat) -> Instruction:
    """Emit each block's power-of-two scale, which gives its largest element the format's largest exponent.

    The scale of a block of zeros is 0. The element axis has length 1.
    """
    largest = g.op("reduce_max", g.op("abs", blocks), axes=(axis + 1,))
    return g.pointwise("mul", powers_below(g, largest), g.like(2.0**-format.largest_power, largest))


def _block_attributes(g: Builder, node: Node, x: Instruction, axis: str, size: str) -> tuple[int, int]:
    length = node.get_int(size)
    if length < 1:
        raise ParseError(f"attribute {size!r} is {length}, expected at least 1")
    if not x.shape.type.is_floating:
        raise ShapeError(f"the input is {x.shape}, expected floats")
    return g.axis(node.get_int(axis), rank(x)), length


@register("MXFixNeuron", "MXQuantizeDequantize", domain=("", "com.amd.quark", "com.vai.quantize"))
def mx_quantize_dequantize(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit quantisation to a narrow format with a power-of-two scale per block along ``axis``, and dequantisation."""
    axis, size = _block_attributes(g, node, x, "axis", "block_size")
    format = FORMATS[node.get_choice("element_dtype", tuple(FORMATS))]
    if node.get_int("rounding_mode", HALF_TO_EVEN) != HALF_TO_EVEN:
        raise UnsupportedError(f"attribute 'rounding_mode' is {node.get_int('rounding_mode')}, only 2 is supported")
    blocks = _in_blocks(g, g.convert(x, Type.float_type), axis, size)
    scale = _block_scales(g, blocks, axis, format)
    empty = g.pointwise("equal", scale, g.like(0, scale))
    divisor = g.pointwise("where", empty, g.like(1, scale), scale)
    scaled = g.pointwise("div", blocks, divisor)
    near = nearest_float(g, scaled, format.fraction, format.least, format.most)
    lens = g.lens(blocks)
    whole = g.reshape(g.pointwise("mul", near, scale), (*lens[:axis], lens[axis] * size, *lens[axis + 2 :]))
    return g.convert(g.slice(whole, axis, 0, g.lens(x)[axis]), x.shape.type)


@register("DynamicScale", domain=("", "onnx.brevitas"))
def dynamic_scale(g: Builder, node: Node, x: Instruction) -> Sequence[Instruction]:
    """Emit each group's power-of-two scale along ``group_dim``, by the largest exponent of ``output_dtype``."""
    axis, size = _block_attributes(g, node, x, "group_dim", "group_size")
    name = _OF_OUTPUT.get(elem_name(node.get_int("output_dtype")))
    if name is None:
        known = ", ".join(_OF_OUTPUT)
        raise UnsupportedError(f"output_dtype {elem_name(node.get_int('output_dtype'))} is not supported; {known} are")
    node.refuse("scale_selection_method", "floor")
    node.refuse("zero_point_selection_method", "None")
    blocks = _in_blocks(g, g.convert(x, Type.float_type), axis, size)
    scale = g.squeeze(_block_scales(g, blocks, axis, FORMATS[name]), [axis + 1])
    return [g.convert(scale, x.shape.type)]
