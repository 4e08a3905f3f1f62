"""Rotary position embedding."""

from __future__ import annotations

import numpy as np

from ...core.dim import known_equal
from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ..arithmetic import mul_scalar
from .attention import merge_heads, split_heads
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register


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
    """Emit RotaryEmbedding of com.microsoft; ``position_ids`` is [b, s], or [1] for the position of the first token.

    The attribute ``scale`` has no effect, as in ONNX Runtime's kernels.
    """
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
        places = g.broadcast(g.pointwise("add", start, g.convert(g.iota(s, 1, 2), start.shape.type)), (b, s))
    places = g.from_start(places)
    cosine, sine = (table_rows(g, t, places, x.shape.type) for t in (cosine, sine))
    y = rotate(g, x4, cosine, sine, node.get_bool("interleaved"))
    return merge_heads(g, y) if flat else y


@register("MRotaryEmbedding", domain=MICROSOFT)
def multimodal_rotary_embedding(
    g: Builder, node: Node, x: Instruction, places: Instruction, cosine: Instruction, sine: Instruction
) -> Instruction:
    """Emit a rotation whose angles follow three positions [3, b, s] of a token: time, height and width.

    ``mrope_section`` says how many angles each has, in runs or (``mrope_layout`` 1) in turn.
    """
    flat, half = rank(x) == 3, g.lens(cosine)[1]
    heads = node.get_int("num_heads", 0)
    x4 = split_heads(g, x, heads or g.lens(x)[2] // (2 * half)) if flat else x
    sections = node.get_ints("mrope_section")
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != half:
        raise ParseError(f"mrope_section is {sections}, expected three lengths that add up to {half}")
    if rank(places) != 3 or g.lens(places)[0] != 3:
        raise ShapeError(f"position_ids is {list(g.lens(places))}, expected [3, batch, tokens]")
    column = np.arange(half)
    if node.get_int("mrope_layout", 0) == 1:
        owner = np.zeros(half, int)
        for stream in (1, 2):
            owner[(column % 3 == stream) & (column < 3 * sections[stream])] = stream
    else:
        owner = np.repeat(np.arange(3), sections)
    streams = [g.from_start(g.squeeze(part, [0])) for part in g.split(places, 0, [1, 1, 1])]
    tables = []
    for table in (cosine, sine):
        rows = [table_rows(g, table, stream, x.shape.type) for stream in streams]
        chosen = rows[0]
        for stream in (1, 2):
            chosen = g.pointwise("where", g.literal(owner == stream), rows[stream], chosen)
        tables.append(chosen)
    y = mul_scalar(g, rotate(g, x4, tables[0], tables[1], node.get_bool("interleaved")), node.get_float("scale", 1.0))
    return merge_heads(g, y) if flat else y
