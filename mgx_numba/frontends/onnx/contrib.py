"""Further operators of ONNX Runtime, and PyTorch's export of ATen operators (``embedding_bag`` only)."""

from __future__ import annotations

import itertools

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.matmul_nbits import BLOCK_SIZES, ROW_TYPES
from ..arithmetic import mul_scalar
from .builder import Builder, rank
from .convolution import fused_activation
from .matmul import gemm_node, matmul
from .node import Node
from .normalization import layer_norm
from .pooling import pool_mode
from .registry import MICROSOFT, register

# Of QLoRA and bitsandbytes, by definition.
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
# Of bitsandbytes, by definition.
FP4_POSITIVE = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)


@register("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(
    g: Builder,
    node: Node,
    a: Instruction,
    b: Instruction,
    scales: Instruction,
    zeros: Instruction | None = None,
    groups: Instruction | None = None,
    bias: Instruction | None = None,
) -> Instruction:
    """Emit ``a @ w^T + bias`` for w [N, K] of 2, 3, 4 or 8 bits, with a scale and zero point for each block along K.

    ``g_idx`` maps each column of w to its block. ``accuracy_level`` 4 allows int8 for ``a``.
    """
    inner, outer = node.get_int("K"), node.get_int("N")
    bits, block = node.get_int("bits", 4), node.get_int("block_size")
    if bits not in (2, 3, 4, 8) or block < 16 or min(inner, outer) < 0:
        raise UnsupportedError(
            f"bits {bits}, block_size {block}, K {inner}, N {outer}: expected 2, 3, 4 or 8 bits, blocks of 16 or "
            "more, and lengths of 0 or more"
        )
    blocks = -(-inner // block)
    if b.shape.elements != outer * blocks * block * bits // 8:
        raise ShapeError(f"input B has {b.shape.elements} bytes, expected {outer * blocks * block * bits // 8}")
    packed = zeros is not None and zeros.shape.type is Type.uint8_type
    wanted = (scales, "scales", blocks), (zeros, "zero_points", -(-blocks * bits // 8) if packed else blocks)
    for given, name, count in wanted:
        if given is not None and not given.shape.is_dynamic and given.shape.elements != outer * count:
            raise ShapeError(f"input {name} has {given.shape.elements} elements, expected {outer} x {count}")
    level = 4 if node.get_int("accuracy_level", 0) == 4 else 0
    kept = groups is None and bits in (4, 8) and rank(a) > 1 and a.shape.type in ROW_TYPES and b.shape.elements > 0
    if kept and a.shape.dims[-1].min == a.shape.dims[-1].max == inner:
        weights = _block_weights(g, b, scales, zeros, (outer, inner), bits, block)
        if weights is not None:
            size = min(block, BLOCK_SIZES[0])
            y = g.op("matmul_nbits", a, *weights, bits=bits, block_size=size, accuracy_level=level)
            return y if bias is None else g.pointwise("add", y, bias)
    values = unpacked(g, g.reshape(b, (outer, blocks, block * bits // 8)), bits)
    type = scales.shape.type
    point = _zero_points(g, zeros, outer, blocks, bits, type)
    scale = g.reshape(scales, (outer, blocks, 1))
    if groups is not None:
        columns = g.slice(g.from_start(groups), 0, 0, inner)
        values = g.slice(g.reshape(values, (outer, blocks * block)), 1, 0, inner)
        scale = g.op("gather", g.squeeze(scale, [2]), columns, axis=1)
        point = point if rank(point) == 0 else g.op("gather", g.squeeze(point, [2]), columns, axis=1)
    if point.shape.type is Type.uint8_type:
        lens = g.lens(values)
        wide = g.op("dequantizelinear", values, g.broadcast(scale, lens), g.broadcast(point, lens))
    else:
        wide = g.pointwise("mul", g.pointwise("sub", g.convert(values, type), point), scale)
    matrix = wide if groups is not None else g.slice(g.reshape(wide, (outer, blocks * block)), 1, 0, inner)
    y = matmul(g, a, g.convert(g.swap_last(matrix), a.shape.type), accuracy_level=level)
    return y if bias is None else g.pointwise("add", y, bias)


def _block_weights(
    g: Builder, b: Instruction, scales: Instruction, zeros: Instruction | None, lens: tuple[int, int], bits: int,
    block: int,
) -> list[Instruction] | None:  # fmt: skip
    """Return constant weights [n, k] as ``matmul_nbits`` takes them; None if they are computed or no kernel reads them.

    Codes stay as the file has them. Blocks that are longer than kernels read become several blocks with one scale.
    """
    (outer, inner), blocks = lens, -(-lens[1] // block)
    size = min(block, BLOCK_SIZES[0])
    codes, factors, points = (None if x is None else g.constants.value(x) for x in (b, scales, zeros))
    if codes is None or factors is None or factors.dtype == np.float64 or size not in BLOCK_SIZES or block % size:
        return None
    if zeros is not None and (points is None or points.dtype != np.uint8):
        return None
    count = -(-inner // size)

    def apart(array: np.ndarray) -> np.ndarray:
        """Return the values of blocks of ``size`` from those of blocks of ``block``, [n, blocks]."""
        array = array.reshape(outer, blocks)
        return array if block == size else np.repeat(array, block // size, axis=1)[:, :count]

    codes = codes.reshape(outer, -1, size * bits // 8)[:, :count]
    made = [g.literal(codes), g.literal(apart(factors).astype(np.float32))]
    if points is not None:
        if bits == 4:
            packed = points.reshape(outer, -(-blocks // 2))
            points = np.stack([packed & 15, packed >> 4], 2).reshape(outer, -1)[:, :blocks]
        made.append(g.literal(apart(points)))
    return made


def unpacked(g: Builder, x: Instruction, bits: int) -> Instruction:
    """Unpack bytes into elements of ``bits`` bits along the last axis, the lowest bits first."""
    if bits == 8:
        return x
    if bits == 4:
        return g.op("unpack_int4", x, axis=rank(x) - 1)
    if bits == 3:
        return _across_bytes(g, x, bits)
    shifts = g.literal(np.arange(0, 8, bits, dtype=np.uint8))
    apart = g.pointwise("bitwise_shift_right", g.unsqueeze(x, [rank(x)]), shifts)
    parts = g.pointwise("bitwise_and", apart, g.like((1 << bits) - 1, x))
    lens = g.lens(x)
    return g.reshape(parts, (*lens[:-1], lens[-1] * (8 // bits)))


def _across_bytes(g: Builder, x: Instruction, bits: int) -> Instruction:
    """Unpack elements that may lie in two bytes: element i has the bits from ``bits * i`` on."""
    count, axis = g.lens(x)[-1], rank(x) - 1
    first = np.arange(count * 8 // bits) * bits
    low, high = (
        g.convert(g.op("gather", x, g.literal(np.minimum(first // 8 + k, count - 1)), axis=axis), Type.int32_type)
        for k in range(2)
    )
    both = g.pointwise("add", low, g.pointwise("mul", high, g.like(256, high)))
    apart = g.pointwise("bitwise_shift_right", both, g.literal((first % 8).astype(np.int32)))
    return g.convert(g.pointwise("bitwise_and", apart, g.like((1 << bits) - 1, apart)), Type.uint8_type)


def _zero_points(g: Builder, zeros: Instruction | None, outer: int, blocks: int, bits: int, type: Type) -> Instruction:
    """Emit zero points [N, blocks, 1].

    They default to the middle of the range; else they are bytes packed along the blocks, or plain floats.
    """
    if zeros is None:
        return g.literal(1 << (bits - 1), Type.uint8_type)
    if zeros.shape.type is not Type.uint8_type:
        return g.convert(g.reshape(zeros, (outer, blocks, 1)), type)
    zeros = g.slice(unpacked(g, g.reshape(zeros, (outer, -(-blocks * bits // 8))), bits), 1, 0, blocks)
    return g.reshape(zeros, (outer, blocks, 1))


@register("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(g: Builder, node: Node, a: Instruction, b: Instruction, largest: Instruction) -> Instruction:
    """Emit ``a @ w^T`` for w [N, K] of FP4 or NF4 codes times block maxima.

    A byte holds two codes, the first in its high half.
    """
    inner, outer, block = node.get_int("K"), node.get_int("N"), node.get_int("block_size")
    kind = node.get_int("quant_type")
    if kind not in (0, 1) or block < 1 or inner * outer % block or inner * outer % 2:
        raise UnsupportedError(f"quant_type {kind}, block_size {block} for {outer} x {inner} weights is not supported")
    table = NF4 if kind else (*FP4_POSITIVE, *(-v for v in FP4_POSITIVE))
    pairs = g.reshape(g.op("unpack_int4", g.reshape(b, (inner * outer // 2,)), axis=0), (inner * outer // 2, 2))
    codes = g.reshape(g.op("reverse", pairs, axes=(1,)), (inner * outer // block, block))
    type = largest.shape.type
    values = g.op("gather", g.literal(np.array(table), type), g.convert(codes, Type.int32_type), axis=0)
    wide = g.pointwise("mul", values, g.reshape(largest, (inner * outer // block, 1)))
    weights = g.reshape(wide, (outer, inner))
    return matmul(g, a, g.convert(g.swap_last(weights), a.shape.type))


@register("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    g: Builder,
    node: Node,
    ids: Instruction,
    segments: Instruction | None,
    words: Instruction,
    places: Instruction,
    segment_table: Instruction | None,
    gamma: Instruction,
    beta: Instruction,
    mask: Instruction | None = None,
    place_ids: Instruction | None = None,
) -> list[Instruction]:
    """Emit the normalised sum of word, position and segment embeddings, the number of visible tokens, and the sum."""
    lens = g.lens(ids)
    if len(lens) != 2 or rank(words) != 2:
        raise ParseError(f"ids {list(lens)} must be [batch, tokens], embeddings matrices")
    total = g.op("gather", words, g.from_start(ids), axis=0)
    if place_ids is None:
        position = g.slice(places, 0, 0, lens[1])
    else:
        position = g.op("gather", places, g.from_start(place_ids), axis=0)
    total = g.pointwise("add", total, position)
    if segments is None and segment_table is not None:  # all tokens belong to segment 0
        total = g.pointwise("add", total, g.slice(segment_table, 0, 0, 1))
    if segments is not None and segment_table is not None:
        total = g.op("add", total, g.op("gather", segment_table, g.from_start(segments), axis=0))
    y, _, _ = layer_norm(g, total, gamma, beta, 2, node.get_float("epsilon", 1e-12))
    if mask is None:
        visible = g.broadcast(g.literal(np.int32(0)), (lens[0],))
    else:
        visible = g.reduce("reduce_sum", g.convert(mask, Type.int32_type), [1], keep=False)
    return [y, visible, total]


@register("ATen", domain=("", "org.pytorch.aten"))
def aten(
    g: Builder, node: Node, table: Instruction, ids: Instruction, starts: Instruction, *others: Instruction
) -> Instruction:
    """Emit ``embedding_bag``: rows of the table summed, averaged or maximised (``mode`` 0, 1, 2) over bags of ids."""
    name = node.get_str("operator", "")
    if "embedding_bag" not in name:
        raise UnsupportedError(f"ATen operator {name!r} is not supported")
    if any(other is not None for other in others):
        raise UnsupportedError("weights of samples are not supported")
    mode = node.get_int("mode", 0)
    if mode not in (0, 1, 2) or rank(ids) != 1:
        raise ParseError(f"mode is {mode}, expected 0 to 2; ids have {rank(ids)} dimensions, expected 1")
    count = g.lens(ids)[0]
    bounds = [*g.ints(starts, "offsets"), count]
    if bounds[0] != 0 or any(a >= b for a, b in itertools.pairwise(bounds)):
        raise ShapeError(f"offsets {bounds[:-1]} do not cut {count} ids into bags")
    op = ("reduce_sum", "reduce_mean", "reduce_max")[mode]
    rows = g.op("gather", table, g.from_start(ids), axis=0)
    bags = [g.op(op, g.slice(rows, 0, a, b), axes=(0,)) for a, b in itertools.pairwise(bounds)]
    return g.op("concat", *bags, axis=0) if len(bags) > 1 else bags[0]


@register("FusedGemm", domain=MICROSOFT)
def fused_gemm(g: Builder, node: Node, a: Instruction, b: Instruction, c: Instruction | None = None) -> Instruction:
    """Emit Gemm and an activation."""
    params = [
        node.get_float(name) for name in ("activation_alpha", "activation_beta", "activation_gamma") if node.has(name)
    ]
    return fused_activation(g, gemm_node(g, node, a, b, c), node.get_str("activation", ""), params)


@register("ExpandDims", domain=MICROSOFT)
def expand_dims(g: Builder, node: Node, x: Instruction, axis: Instruction) -> Instruction:
    """Insert an axis of length 1 at a constant position."""
    return g.unsqueeze(x, [g.axis(g.int_value(axis, "axis"), rank(x) + 1)])


@register("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit max pooling of [n, spatial..., c]."""
    last = rank(x) - 1
    y = pool_mode(g, node, g.transpose(x, [0, last, *range(1, last)]), "max")[0]
    return g.transpose(y, [0, *range(2, last + 1), 1])


@register("Unique", domain=MICROSOFT)
def unique_contrib(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit a vector's distinct elements by first occurrence, each element's index among them, and counts."""
    if rank(x) != 1:
        raise ShapeError(f"the input has {rank(x)} dimensions, expected 1")
    result = g.op("unique", x, axis=None, sorted=False)
    return [g.op("get_tuple_elem", result, index=k) for k in (0, 2, 3)]


@register("Inverse", domain=MICROSOFT)
def inverse(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the inverses of the matrices in the last two axes."""
    return g.op("inverse", x)


@register("CDist", domain=MICROSOFT)
def cdist(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit the distances [m, n] between the rows of two matrices [m, k] and [n, k]."""
    metric = node.get_str("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError(f"attribute 'metric' is {metric!r}; sqeuclidean and euclidean are supported")
    if (rank(a), rank(b)) != (2, 2) or g.lens(a)[1] != g.lens(b)[1]:
        raise ParseError(f"inputs are {a.shape} and {b.shape}, expected matrices of rows of equal lengths")
    # |a|^2 - 2 ab + |b|^2, as in ONNX Runtime; equal rows may give a value slightly below 0
    squares = [g.reduce("reduce_sum", g.op("mul", x, x), [1]) for x in (a, b)]
    product = mul_scalar(g, g.op("dot", a, g.swap_last(b)), -2.0)
    total = g.pointwise("add", g.pointwise("add", product, squares[0]), g.swap_last(squares[1]))
    total = g.pointwise("max", total, g.like(0, total))
    return g.op("sqrt", total) if metric == "euclidean" else total
