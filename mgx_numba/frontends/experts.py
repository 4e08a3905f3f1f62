"""Mixtures of experts: an expert computes the rows of the tokens that chose it, and nothing if no token did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from ..core.types import Type
from ..graph.instruction import Instruction
from ..graph.module import Module
from ..ops.control import IfShort
from .builder import GraphBuilder

B = TypeVar("B", bound=GraphBuilder)

Expert = Callable[[B, Instruction], Instruction]
"""Emits, by the builder of a submodule, an expert's results [n, width] for rows [n, width]."""

ROOM = 2
"""Rows that an expert computes alone, as a multiple of an even share; an expert of more tokens computes all tokens.
Of 8 experts, 2 for a token, half of the rows; no figures kept for other values."""
_NOWHERE = 1 << 40  # beyond every slot


class Mixture(Generic[B]):
    """Emits a mixture of experts.

    Attributes:
        g: builder of the module around the mixture.
        inside: makes a submodule and its builder.
    """

    def __init__(self, g: B, inside: Callable[[], tuple[B, Module]]) -> None:
        self.g, self.inside = g, inside

    def __call__(
        self,
        tokens: Instruction,
        shares: Instruction,
        used: int,
        experts: Sequence[Expert[B]],
        zeros: Callable[[Type, type[np.generic]], Instruction],
    ) -> Instruction:
        """Emit ``sum over experts e of shares[:, e] * experts[e](tokens)``.

        Args:
            tokens: [tokens, width], float32.
            shares: [tokens, experts], float32, zero where a token does not use an expert.
            used: experts that a token uses.
            zeros: emits zeros [experts, slots]; ``slots`` is `ROOM` times an even share of the tokens, rounded up.
        """
        g = self.g
        total = g.op("multibroadcast", g.literal(np.zeros((1, 1), np.float32)), tokens)
        by_expert = g.op("transpose", shares, permutation=(1, 0))
        taken = g.pointwise("greater", by_expert, g.literal(np.float32(0)))
        counts = g.op("reduce_sum", g.convert(taken, Type.int64_type), axes=(1,))
        some = self._slots(by_expert, taken, zeros) if 2 * ROOM * used <= len(experts) else None
        for number, expert in enumerate(experts):
            count = self._part(g, counts, number)
            inner, module = self.inside()
            if some is None:
                result = self._all(inner, tokens, by_expert, number, expert, total)
            else:
                every, few = (self.inside() for _ in range(2))
                every[1].add_return([self._all(every[0], tokens, by_expert, number, expert, total)])
                few[1].add_return([self._few(few[0], tokens, *some[:2], number, expert, total)])
                fits = inner.pointwise("less", count, some[2])
                result = self._either(inner, fits, every[1], few[1])
            module.add_return([result])
            skipped = self.inside()[1]
            skipped.add_return([total])
            total = self._either(g, g.pointwise("equal", count, g.literal(np.int64(0))), module, skipped)
        return total

    def _either(self, g: B, short: Instruction, usual: Module, shortcut: Module) -> Instruction:
        """Emit the result of ``shortcut`` where ``short``, else of ``usual``, which differ in speed alone."""
        condition = g.op("not", g.op("reshape", short, dims=(1,)))
        return g.op("get_tuple_elem", g.op(IfShort(), condition, modules=[usual, shortcut]), index=0)

    def _slots(
        self, shares: Instruction, taken: Instruction, zeros: Callable[[Type, type[np.generic]], Instruction]
    ) -> tuple[Instruction, Instruction, Instruction]:
        """Emit tokens and shares [experts, slots] of the first tokens that use each expert, and the number of slots.

        Slots without a token have share 0.
        """
        g = self.g
        numbers = g.op("prefix_scan_sum", g.convert(taken, Type.int64_type), axis=1, exclusive=True, reverse=False)
        places = g.pointwise("where", taken, numbers, g.literal(np.int64(_NOWHERE)))
        ones = g.op("multibroadcast", g.literal(np.ones((1, 1), np.int64)), shares)
        index = g.op("prefix_scan_sum", ones, axis=1, exclusive=True, reverse=False)
        empty = zeros(Type.int64_type, np.int64), zeros(Type.float_type, np.float32)
        rows, weights = (
            g.op("scatter_none", data, places, values, axis=1, skip_out_of_bounds=True)
            for data, values in zip(empty, (index, shares), strict=True)
        )
        return rows, weights, g.op("dimensions_of", empty[0], start=1, end=2)

    def _all(
        self, g: B, tokens: Instruction, shares: Instruction, number: int, expert: Expert[B], total: Instruction
    ) -> Instruction:
        share = g.op("transpose", self._part(g, shares, number), permutation=(1, 0))
        return g.op("add", total, self._shared(g, expert(g, tokens), share))

    def _few(
        self,
        g: B,
        tokens: Instruction,
        rows: Instruction,
        shares: Instruction,
        number: int,
        expert: Expert[B],
        total: Instruction,
    ) -> Instruction:
        own, share = (g.op("transpose", self._part(g, x, number), permutation=(1, 0)) for x in (rows, shares))
        given = g.op("gather", tokens, g.op("squeeze", own, axes=(1,)), axis=0)
        return g.op("scatternd_add", total, own, self._shared(g, expert(g, given), share))

    def _shared(self, g: B, y: Instruction, share: Instruction) -> Instruction:
        """Emit a product that is 0 where the share is, whatever the expert computes there."""
        chosen = g.pointwise("greater", share, g.literal(np.float32(0)))
        return g.pointwise("where", chosen, g.pointwise("mul", y, share), g.literal(np.float32(0)))

    def _part(self, g: B, x: Instruction, number: int) -> Instruction:
        return g.op("slice", x, axes=(0,), starts=(number,), ends=(number + 1,))
