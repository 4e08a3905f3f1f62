"""Convolutions of 8-bit integers by Winograd's minimal filtering in 16-bit integers: exact, with fewer products.

F(2 x 2, 3 x 3) takes 11 bits for uint8 inputs and 12 for unscaled int8 filters. Products of two pairs and their sums
are int32. The output transform gives four times each result, so that a result must fit 30 bits: problems with too many
channels are declined. With VNNI, which adds four products at once, the direct kernel is as fast.
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

_TERMS = (1 << 29) // (255 * 128)
"""Most products of uint8 and int8 whose sum is a quarter of an int32."""


class ConvWinogradInt8(ConvWinograd):
    """Solver for uint8 or int8 pixels by constant int8 weights. Takes a form of n = 4."""

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

    def rewrites(self, problem: ConvProblem) -> bool:
        """Return False: sums of integers are exact."""
        return False

    def _scale(self) -> float:
        return 1
