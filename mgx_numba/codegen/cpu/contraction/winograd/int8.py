"""Convolutions of 8-bit integers by Winograd's minimal filtering in 16-bit integers: exact, with fewer products.

F(2 x 2, 3 x 3) of uint8 inputs takes 11 bits, of int8 filters that are not scaled 12; products of two pairs and their
sums are int32. Four times each result comes out, so that a result has to fit 30 bits: fewer channels than that needs
are declined. Where four products are added at once (VNNI) the direct kernel is as fast.
"""

from __future__ import annotations

from typing import ClassVar

from ....problems.convolution import ConvProblem
from ....problems.epilogue import NOT_COMPUTED
from ...microkernels.tile_table import tile_for
from ..conv import ConvDirect
from ..conv_int8 import ConvInt8
from ..solver import integer_types_refused
from .solver import ConvWinograd

__all__ = ["ConvWinogradInt8"]

_TERMS = (1 << 29) // (255 * 128)
"""Products of uint8 and int8 whose sum is a quarter of an int32."""


class ConvWinogradInt8(ConvWinograd):
    """uint8 or int8 pixels times a constant int8. Takes a form of n = 4."""

    _direct: ClassVar[ConvDirect] = ConvInt8()

    @property
    def name(self) -> str:
        return self.form.name + "_int8" + ("_stored" if self.form.stored else "")

    def refused_types(self, problem: ConvProblem) -> str | None:
        return integer_types_refused(problem.types)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if tile_for(problem.types).packing.k_interleave != 2:
            return "the CPU adds four products at once"
        if problem.taps * problem.group_in > _TERMS:
            return f"a result is a sum of more than {_TERMS} products"
        return self._declines_form(problem)

    def _scale(self) -> float:
        return 1
