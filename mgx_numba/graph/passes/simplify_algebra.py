"""Algebraic identities: units, constants gathered and moved into weights, reductions of repeated values, contractions
joined."""

from __future__ import annotations

from .rewriter import RulePass
from .rules.contractions import CONTRACTION_RULES
from .rules.horizontal import HORIZONTAL_RULES
from .rules.linear import LINEAR_RULES
from .rules.reductions import REDUCTION_RULES
from .rules.units import UNIT_RULES

__all__ = ["SimplifyAlgebra"]


class SimplifyAlgebra(RulePass):
    """Rules of ``rules/units.py``, ``linear.py``, ``reductions.py``, ``contractions.py`` and ``horizontal.py``, until
    none applies.

    Batch normalization, in whatever primitive form, becomes one factor and one summand for each channel; the factor
    is absorbed by the convolution or dot before it.
    """

    name = "simplify_algebra"
    rules = (*UNIT_RULES, *LINEAR_RULES, *REDUCTION_RULES, *CONTRACTION_RULES, *HORIZONTAL_RULES)
