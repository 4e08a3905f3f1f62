"""`token_choice`: a program that chooses tokens from logits where they lie, as `sampling` does on the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...frontends.builder import GraphBuilder
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.program import Program
from .params import SearchOptions

if TYPE_CHECKING:
    from ...api.program import program

MOST_CANDIDATES = 256
"""Most candidates that a program draws from: a quarter of the elements that a kernel of top-k compares at once."""
NONE = -1
"""The token if no token can be chosen: a logit is NaN, or every token is excluded."""


def token_choice(rows: int, vocabulary: int, type: Type, count: int) -> program:
    """Return a program, not compiled, that chooses the next token of each row.

    Its parameters are ``logits`` [rows, 1, vocabulary] and, if ``count`` is above 1, float64 ``number`` [rows, 1] from
    0 to 1 and ``settings`` as `settings` returns them. Its result is int64 [rows, 1].

    Args:
        type: element type of the logits.
        count: number of likeliest tokens to draw from; 1 for the likeliest token.
    """
    from ...api.program import program

    made = Program()
    main = made.main
    g = GraphBuilder(main, Constants(made.allowance))
    logits = main.add_parameter("logits", Shape(type, (rows, 1, vocabulary)))
    if count == 1:
        best, token = _first_largest(g, g.reshape(logits, (rows, vocabulary)))
        valid = g.pointwise("greater", best, g.literal(best.shape.type.numpy.type(-np.inf)))  # false for NaN
    else:
        both = g.op("topk", logits, k=count, axis=2, largest=True)  # a NaN counts as largest
        values, tokens = (g.reshape(g.op("get_tuple_elem", both, index=n), (rows, count)) for n in (0, 1))
        best = g.convert(g.op("slice", values, axes=(1,), starts=(0,), ends=(1,)), Type.double_type)
        valid = g.pointwise("greater", best, g.literal(np.float64(-np.inf)))
        valid = g.pointwise("logical_and", valid, g.pointwise("less", best, g.literal(np.float64(np.inf))))
        number = main.add_parameter("number", Shape(Type.double_type, (rows, 1)))
        given = main.add_parameter("settings", Shape(Type.double_type, (3,)))
        token = _drawn(g, g.convert(values, Type.double_type), best, tokens, number, given)
    main.add_return([g.pointwise("where", valid, token, g.literal(np.int64(NONE)))])
    return program.wrap(made)


def _first_largest(g: GraphBuilder, x: Instruction) -> tuple[Instruction, Instruction]:
    """Emit the largest element [rows, 1] of each row, and the position of the first one; NaN if there is a NaN.

    A kernel of ``argmax`` has one team of threads for a row, so rows are searched in parts of about as many elements as
    there are parts.
    """
    rows, count = x.shape.lens
    size = next(n for n in range(math.isqrt(count), count + 1) if count % n == 0)
    parts, lens = g.reshape(x, (rows, count // size, size)), (rows, count // size)
    most = g.reshape(g.reduce("reduce_max", parts, [2], keep=True), lens)
    within = g.reshape(g.op("argmax", parts, axis=2, select_last_index=False), lens)
    places = g.pointwise("add", within, g.literal(np.arange(0, count, size)))
    best = g.reduce("reduce_max", most, [1], keep=True)
    places = g.pointwise("where", g.pointwise("equal", most, best), places, g.literal(np.int64(count)))
    return best, g.reduce("reduce_min", places, [1], keep=True)


def settings(options: SearchOptions) -> np.ndarray:
    """Return temperature, top-p and min-p as a program takes them; of a top-p of 1 every candidate is admitted."""
    top_p = np.inf if options.top_p >= 1 else options.top_p
    return np.array([options.temperature, top_p, options.min_p], np.float64)


def _drawn(
    g: GraphBuilder,
    values: Instruction,
    best: Instruction,
    tokens: Instruction,
    number: Instruction,
    given: Instruction,
) -> Instruction:
    """Emit the token at ``number`` in the cumulated weights of the admitted tokens, which are the first ones."""
    count = tokens.shape.lens[1]
    temperature, top_p, min_p = (g.op("slice", given, axes=(0,), starts=(k,), ends=(k + 1,)) for k in range(3))
    places = g.literal(np.arange(count))

    def total(x: Instruction) -> Instruction:
        return g.reduce("reduce_sum", x, [1], keep=True)

    def counted(condition: Instruction) -> Instruction:
        return total(g.convert(condition, Type.int64_type))

    def sums(x: Instruction, exclusive: bool) -> Instruction:
        return g.op("prefix_scan_sum", x, axis=1, exclusive=exclusive, reverse=False)

    weights = g.pointwise("exp", g.pointwise("div", g.pointwise("sub", values, best), temperature))
    before = g.pointwise("less", sums(weights, True), g.pointwise("mul", total(weights), top_p))
    admitted = g.pointwise("logical_or", before, g.pointwise("equal", places, g.literal(np.int64(0))))
    admitted = g.pointwise("logical_and", admitted, g.pointwise("greater_or_equal", weights, min_p))
    zero = g.literal(np.float64(0))
    weights = g.pointwise("where", admitted, weights, zero)
    passed = counted(g.pointwise("less_or_equal", sums(weights, False), g.pointwise("mul", total(weights), number)))
    last = g.pointwise("sub", counted(g.pointwise("greater", weights, zero)), g.literal(np.int64(1)))
    here = g.pointwise("equal", places, g.pointwise("min", passed, last))
    return total(g.pointwise("where", here, tokens, g.literal(np.int64(0))))
