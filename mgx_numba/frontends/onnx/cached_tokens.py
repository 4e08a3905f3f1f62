"""Parts of operators with a key and value cache: spans of the new tokens, heads, rotation and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...core.dim import Dim, equal, known_equal
from ...core.types import Type
from ...dataclass import dataclass
from ...graph.instruction import Instruction
from .attention import Mask, positions, split_heads
from .builder import Builder
from .node import Node
from .rotary import rotate, table_rows

NARROW = (Type.half_type, Type.bf16_type)


@dataclass
class Spans:
    """The new tokens and valid keys of each sequence, int64.

    Attributes:
        start: position of the first new token, [b, 1].
        ends: number of valid keys after the step, [b, 1].
        tokens: position of each new token, [b, s].
        written: as ``tokens``, with -1 for padding, which is not written.
    """

    start: Instruction
    ends: Instruction
    tokens: Instruction
    written: Instruction

    def limits(self, g: Builder) -> Instruction:
        """Emit start and ends as [b, 2]."""
        return g.op("concat", self.start, self.ends, axis=1)


def score_scale(node: Node, head: int) -> float:
    """Return the factor of the scores."""
    return node.get_float("scale", 0.0) or 1 / math.sqrt(head)


def in_float(g: Builder, x: Instruction, make: Callable[[Instruction], Instruction]) -> Instruction:
    """Emit what ``make`` makes of ``x`` in float32, rounded to the type of ``x`` once."""
    if x.shape.type not in NARROW:
        return make(x)
    return g.convert(make(g.convert(x, Type.float_type)), x.shape.type)


def rotated(
    g: Builder, x: Instruction, cosine: Instruction, sine: Instruction, where: Instruction, interleaved: bool
) -> Instruction:
    """Emit x [b, h, s, d] rotated by the tables' angles of the positions ``where`` [b, s]."""
    cosine, sine = (table_rows(g, table, where, x.shape.type) for table in (cosine, sine))
    return rotate(g, x, cosine, sine, interleaved)


def normalized(g: Builder, x: Instruction, weight: Instruction, epsilon: float) -> Instruction:
    """Emit the root mean square normalisation of each head's features."""

    def make(x: Instruction) -> Instruction:
        square = g.op("reduce_mean", g.pointwise("mul", x, x), axes=(3,))
        factor = g.pointwise("rsqrt", g.pointwise("add", square, g.like(epsilon, x)))
        return g.pointwise("mul", g.pointwise("mul", x, factor), g.convert(weight, x.shape.type))

    return in_float(g, x, make)


def with_sink(
    g: Builder, q: Instruction, k: Instruction, v: Instruction, mask: Mask, sink: Instruction
) -> tuple[Instruction, Instruction]:
    """Append a visible key and value of zeros, with the sink's score per head as its bias."""
    b, h, s, _ = g.lens(q)
    whole = g.lens(k)[2]
    k, v = (g.op("pad", x, pads=(0, 0, 0, 0, 0, 0, 1, 0)) for x in (k, v))
    if mask.allowed is not None:
        allowed = g.broadcast(mask.allowed, (b, 1, s, whole))
        mask.allowed = g.op("concat", allowed, g.broadcast(g.literal(True), (b, 1, s, 1)), axis=3)
    bias = g.like(0, q) if mask.bias is None else mask.bias
    column = g.reshape(g.convert(sink, q.shape.type), (h, 1, 1))
    parts = g.broadcast(bias, (b, h, s, whole)), g.broadcast(column, (b, h, s, 1))
    mask.bias = g.op("concat", *parts, axis=3)
    return k, v


def grouped(
    g: Builder, query: Instruction, key: Instruction | None, value: Instruction | None, heads: int, shared: int
) -> tuple[Instruction, Instruction, Instruction]:
    """Emit queries, keys and values, which may be packed, as [b, heads, s, d]."""
    if key is not None and value is not None:
        return split_heads(g, query, heads), split_heads(g, key, shared), split_heads(g, value, shared)
    packed = split_heads(g, query, heads + 2 * shared)
    q, k, v = g.split(packed, 1, [heads, shared, shared])
    return q, k, v


def is_known_prompt(g: Builder, total: Instruction, s: int) -> bool | None:
    """Return whether all tokens are new; None if lengths or values of a run decide that."""
    if g.constants.value(total) is None:
        return None
    wanted = g.int_value(total, "total_sequence_length")
    return None if isinstance(equal(wanted, s), Dim) else known_equal(wanted, s)


def spans_of(
    g: Builder,
    lens: tuple[int, ...],
    last: Instruction,
    total: Instruction,
    query_lengths: Instruction | None,
) -> Spans:
    """Emit the spans of queries [b, h, s, d]; ``last`` has the last position of each sequence."""
    b, _, s, _ = lens
    ends = g.pointwise("add", g.reshape(g.convert(last, Type.int64_type), (b, 1)), g.literal(np.int64(1)))
    if query_lengths is None:
        start = _start(g, ends, total, s, is_known_prompt(g, total, s))
        tokens = g.pointwise("add", start, positions(g, s, 1))
        return Spans(start, ends, tokens, tokens)
    valid = g.reshape(g.convert(query_lengths, Type.int64_type), (b, 1))
    start = g.pointwise("sub", ends, valid)
    tokens = g.pointwise("add", start, positions(g, s, 1))
    is_token = g.pointwise("less", positions(g, s, 1), valid)
    return Spans(start, ends, tokens, g.pointwise("where", is_token, tokens, g.like(-1, tokens)))


def _start(g: Builder, ends: Instruction, total: Instruction, s: int, prompt: bool | None) -> Instruction:
    """Emit the position [b, 1] of each sequence's first new token: 0 for a prompt, else the earlier tokens' number."""
    if prompt:
        return g.broadcast(g.literal(np.int64(0)), g.lens(ends))
    before = g.pointwise("sub", ends, g.literal(s, Type.int64_type))
    if prompt is False:
        return before
    return g.pointwise("where", is_prompt(g, total, s), g.literal(np.int64(0)), before)


def is_prompt(g: Builder, total: Instruction, s: int) -> Instruction:
    """Emit whether all tokens are new, [1, 1]."""
    return g.pointwise("equal", g.reshape(g.convert(total, Type.int64_type), (1, 1)), g.literal(s, Type.int64_type))
