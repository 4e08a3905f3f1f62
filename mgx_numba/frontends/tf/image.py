"""Images."""

from __future__ import annotations

from math import prod

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .data_format import DataFormat
from .node import TfNode
from .registry import register


@register("ResizeBilinear", "ResizeNearestNeighbor")
def resize(g: GraphBuilder, node: TfNode, x: Instruction, size: Instruction) -> Instruction:
    """Emit a resize to constant lengths; a bilinear result is float."""
    if rank(x) != 4:
        raise ParseError(f"the input has {rank(x)} dimensions, expected 4")
    form = DataFormat(node, x)
    linear = node.op_type == "ResizeBilinear"
    corners, centres = node.get_bool("align_corners"), node.get_bool("half_pixel_centers")
    lengths = g.ints(size, "size")
    if len(lengths) != 2 or any(n < 1 for n in lengths):
        raise ParseError(f"input 'size' holds {lengths}, expected two lengths from 1 on")
    x = form.channels_first(g, x)
    if linear:
        x = g.convert(x, Type.float_type)
    coordinates = "align_corners" if corners else "half_pixel" if centres else "asymmetric"
    nearest = "floor"
    if not linear and corners:
        nearest = "round_prefer_ceil"
    elif not linear and centres:
        coordinates = "tf_half_pixel_for_nn"
    y = g.op(
        "resize",
        x,
        sizes=(*g.lens(x)[:2], *lengths),
        mode="linear" if linear else "nearest",
        nearest_mode=nearest,
        coordinate_transformation_mode=coordinates,
    )
    return form.restored(g, y)


@register("SpaceToBatchND")
def space_to_batch(
    g: GraphBuilder, node: TfNode, x: Instruction, block: Instruction, paddings: Instruction
) -> Instruction:
    """Split padded spatial axes into blocks, whose elements become images of the batch."""
    blocks, pairs = _blocks(g, x, block, paddings, "paddings")
    count, axes = len(blocks), rank(x)
    rest = [0] * (axes - 1 - count)
    x = g.op("pad", x, pads=(0, *pairs[::2], *rest, 0, *pairs[1::2], *rest)) if any(pairs) else x
    n, *lens = g.lens(x)
    if any(m % b for m, b in zip(lens, blocks, strict=False)):
        raise ShapeError(f"padded lengths {lens[:count]} do not fit block_shape {blocks}")
    outer = [m // b for m, b in zip(lens, blocks, strict=False)]
    apart = g.reshape(x, [n, *(v for m, b in zip(outer, blocks, strict=True) for v in (m, b)), *lens[count:]])
    inner = [2 + 2 * k for k in range(count)]
    order = [*inner, 0, *(k - 1 for k in inner), *range(1 + 2 * count, axes + count)]
    return g.reshape(g.transpose(apart, order), [n * prod(blocks), *outer, *lens[count:]])


@register("BatchToSpaceND")
def batch_to_space(
    g: GraphBuilder, node: TfNode, x: Instruction, block: Instruction, crops: Instruction
) -> Instruction:
    """Emit the inverse of SpaceToBatchND, with ``crops`` cut off."""
    blocks, pairs = _blocks(g, x, block, crops, "crops")
    count, axes = len(blocks), rank(x)
    n, *lens = g.lens(x)
    if n % prod(blocks):
        raise ShapeError(f"a batch of {n} does not fit block_shape {blocks}")
    apart = g.reshape(x, [*blocks, n // prod(blocks), *lens])
    order = [count, *(v for k in range(count) for v in (count + 1 + k, k)), *range(2 * count + 1, axes + count)]
    whole = [m * b for m, b in zip(lens, blocks, strict=False)]
    y = g.reshape(g.transpose(apart, order), [n // prod(blocks), *whole, *lens[count:]])
    for k, (before, after) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        if before + after > whole[k]:
            raise ShapeError(f"crops {pairs} are longer than lengths {whole}")
        y = g.slice(y, 1 + k, before, whole[k] - after)
    return y


def _blocks(
    g: GraphBuilder, x: Instruction, block: Instruction, pairs: Instruction, what: str
) -> tuple[list[int], list[int]]:
    blocks, values = g.ints(block, "block_shape"), g.ints(pairs, what)
    if not 0 < len(blocks) < rank(x) or any(b < 1 for b in blocks):
        raise ParseError(f"input 'block_shape' holds {blocks}, expected up to {rank(x) - 1} numbers from 1 on")
    if len(values) != 2 * len(blocks) or any(v < 0 for v in values):
        raise ParseError(f"input {what!r} holds {values}, expected {len(blocks)} pairs of numbers from 0 on")
    return blocks, values
