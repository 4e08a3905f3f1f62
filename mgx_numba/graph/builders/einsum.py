"""Sums of products over labelled axes, as matrix products."""

from __future__ import annotations

from ...errors import OperatorError
from ..einsum import einsum
from ..instruction import Instruction
from .base import MacroBuilder, macro

MOST_INPUTS = 26  # letters of the alphabet


@macro("einsum", inputs=(1, MOST_INPUTS), equation="")
def einsum_macro(e: MacroBuilder, *operands: Instruction, equation: str) -> Instruction:
    """Compute the equation (NumPy's notation, ellipsis included), operands contracted pairwise."""
    return einsum(e, equation, operands, lambda message: OperatorError(f"macro einsum: {message}"))
