"""Products with weights of a file: floats as they are stored, blocks multiplied in their layout."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..core.types import Type
from ..frontends.builder import GraphBuilder
from ..graph.instruction import Instruction
from ..ops.block_layouts import layout_named
from .weights import Weight


class Linear:
    """Emits products with weights of a file.

    Attributes:
        accuracy_level: that of products with block-quantised weights: 4 allows rows of int8.
    """

    def __init__(self, g: GraphBuilder, accuracy_level: int) -> None:
        self.g, self.accuracy_level = g, accuracy_level
        self._literals: dict[int, Instruction] = {}

    def within(self, g: GraphBuilder) -> Linear:
        """Return an emitter for a submodule with the builder ``g``; constants stay in the module around it."""
        found = Linear(g, self.accuracy_level)
        found.literal = self.literal  # type: ignore[method-assign]
        return found

    def literal(self, array: np.ndarray) -> Instruction:
        """Return the constant of an array of a file; the same one for the same array."""
        if id(array) not in self._literals:
            self._literals[id(array)] = self.g.literal(array)
        return self._literals[id(array)]

    def __call__(
        self, x: Instruction, weights: Sequence[Weight], biases: Sequence[Weight | None] = (), transposed: bool = False
    ) -> list[Instruction]:
        """Emit ``x @ w^T + bias`` for each of some weights [n, k], or [k, n] if ``transposed``.

        Weights of one layout that read the same rows make one product.
        """
        g = self.g
        if len({w.layout for w in weights}) == 1 and weights[0].layout and len(weights) > 1:
            whole = self._blocks(x, weights)
            sizes = [w.array.shape[0] for w in weights]
            ends = [0, *itertools.accumulate(sizes)]
            results = [g.op("slice", whole, axes=(2,), starts=(a,), ends=(b,)) for a, b in itertools.pairwise(ends)]
        else:
            results = [self._one(x, w, transposed) for w in weights]
        given = list(biases) + [None] * (len(weights) - len(biases))
        return [y if b is None else g.pointwise("add", y, g.literal(b.dense())) for y, b in zip(results, given)]

    def _one(self, x: Instruction, weight: Weight, transposed: bool) -> Instruction:
        if weight.layout:
            return self._blocks(x, [weight])
        matrix = self.g.convert(self.literal(weight.array), Type.float_type)
        return self.g.matmul(x, matrix if transposed else self.g.swap_last(matrix))

    def _blocks(self, x: Instruction, weights: Sequence[Weight]) -> Instruction:
        layout = layout_named(weights[0].layout)
        parts = [self.literal(w.array) for w in weights]
        return self.g.op(
            "matmul_nbits", x, *parts, bits=layout.bits, block_size=layout.size, layout=weights[0].layout,
            accuracy_level=self.accuracy_level,
        )  # fmt: skip


def embedding(linear: Linear, weight: Weight, ids: Instruction) -> Instruction:
    """Emit the rows [batch, sequence, features] of a table [n, features]; blocks are looked up as codes of 8 bits."""
    g = linear.g
    ids = g.from_start(ids)
    if not weight.layout:
        return g.convert(g.op("gather", linear.literal(weight.array), ids, axis=0), Type.float_type)
    layout = layout_named(weight.layout)
    codes, scales, offsets = layout.decode(weight.array)
    blocks, size = codes.shape[1:]
    flat = g.op("gather", g.literal(codes.reshape(len(codes), -1)), ids, axis=0)
    wide = g.convert(g.op("reshape", flat, dims=(0, 0, blocks, size)), Type.float_type)

    def of_block(values: np.ndarray) -> Instruction:
        return g.unsqueeze(g.op("gather", g.literal(values), ids, axis=0), [3])

    if layout.zero_point:
        wide = g.pointwise("sub", wide, g.literal(np.float32(layout.zero_point)))
    wide = g.pointwise("mul", wide, of_block(scales))
    if offsets is not None:
        wide = g.pointwise("add", wide, of_block(offsets))
    return g.op("reshape", wide, dims=(0, 0, blocks * size))
