"""Rotary position embedding.

ai.onnx: RotaryEmbedding (from operator set 23).
com.microsoft: RotaryEmbedding.
"""

from __future__ import annotations

from ...core.dim import known_equal
from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .activation import mul_scalar
from .attention import merge_heads, positions, split_heads
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register

__all__ = ["rotate", "table_rows"]


def rotate(g: Builder, x: Instruction, cosine: Instruction, sine: Instruction, interleaved: bool) -> Instruction:
    """Rotate pairs of the first r features of x [b, h, s, d] by angles.

    Cosine and sine are [b, 1, s, r / 2]. A pair is two neighbours if ``interleaved``, else one feature from each half
    of the first r features.
    """
    b, h, s, d = g.lens(x)
    half = g.lens(cosine)[3]
    if 2 * half > d:
        raise ShapeError(f"tables of {half} angles need {2 * half} features, there are {d}")
    part, rest = g.split(x, 3, [2 * half, d - 2 * half]) if 2 * half < d else (x, None)
    if interleaved:
        pairs = g.reshape(part, (b, h, s, half, 2))
        first, second = (g.reshape(p, (b, h, s, half)) for p in g.split(pairs, 4, [1, 1]))
    else:
        first, second = g.split(part, 3, [half, half])
    real = g.pointwise("sub", g.pointwise("mul", first, cosine), g.pointwise("mul", second, sine))
    imaginary = g.pointwise("add", g.pointwise("mul", first, sine), g.pointwise("mul", second, cosine))
    if interleaved:
        both = g.op("concat", g.unsqueeze(real, [4]), g.unsqueeze(imaginary, [4]), axis=4)
        turned = g.reshape(both, (b, h, s, 2 * half))
    else:
        turned = g.op("concat", real, imaginary, axis=3)
    return turned if rest is None else g.op("concat", turned, rest, axis=3)


def table_rows(g: Builder, table: Instruction, places: Instruction, type: Type) -> Instruction:
    """Emit the rows [b, 1, s, r / 2] of a table [positions, r / 2] at positions [b, s]."""
    return g.unsqueeze(g.convert(g.op("gather", table, places, axis=0), type), [1])


@register("RotaryEmbedding")
def rotary_embedding(
    g: Builder,
    node: Node,
    x: Instruction,
    cosine: Instruction,
    sine: Instruction,
    places: Instruction | None = None,
) -> Instruction:
    """Emit RotaryEmbedding: tables are [positions, r / 2] with ``position_ids`` [b, s], or [b, s, r / 2] without."""
    flat = rank(x) == 3
    heads = split_heads(g, x, node.get_int("num_heads")) if flat else x
    if rank(heads) != 4:
        raise ParseError(f"input has {rank(x)} dimensions, expected 3 or 4")
    width = node.get_int("rotary_embedding_dim", 0) or g.lens(heads)[3]
    if places is None:
        cosine, sine = (g.unsqueeze(t, [1]) for t in (cosine, sine))
    else:
        places = g.from_start(places)
        cosine, sine = (table_rows(g, t, places, x.shape.type) for t in (cosine, sine))
    if rank(cosine) != 4 or 2 * g.lens(cosine)[3] != width:
        raise ShapeError(f"tables give {list(g.lens(cosine))}, expected [b, 1, s, {width // 2}]")
    y = rotate(g, heads, cosine, sine, node.get_bool("interleaved"))
    return merge_heads(g, y) if flat else y


@register("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_contrib(
    g: Builder, node: Node, x: Instruction, places: Instruction, cosine: Instruction, sine: Instruction
) -> Instruction:
    """Emit RotaryEmbedding of com.microsoft; ``position_ids`` is [b, s], or [1] for the position of the first token."""
    flat = rank(x) == 3
    width = 2 * g.lens(cosine)[1]
    heads = node.get_int("num_heads", 0)
    x4 = split_heads(g, x, heads or g.lens(x)[2] // width) if flat else x
    if rank(x4) != 4:
        raise ParseError(f"input has {rank(x)} dimensions, expected 3 or 4")
    b, _, s, _ = g.lens(x4)
    # With symbolic lengths, [b, s] may turn out to be one element, which is then the position.
    if known_equal(places.shape.elements, 1) or (rank(places) == 1 and places.shape.elements == 1):
        start = g.reshape(places, (1, 1))
        places = g.broadcast(g.pointwise("add", start, g.convert(positions(g, s, 1), start.shape.type)), (b, s))
    places = g.from_start(places)
    cosine, sine = (table_rows(g, t, places, x.shape.type) for t in (cosine, sine))
    y = mul_scalar(g, rotate(g, x4, cosine, sine, node.get_bool("interleaved")), node.get_float("scale", 1.0))
    return merge_heads(g, y) if flat else y
