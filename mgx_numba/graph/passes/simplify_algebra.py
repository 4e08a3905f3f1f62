"""Algebraic identities: units, constants merged into weights, reductions of repeated values, joined contractions."""

from __future__ import annotations

from .rewriter import RulePass
from .rules.contractions import CONTRACTION_RULES
from .rules.horizontal import HORIZONTAL_RULES
from .rules.linear import LINEAR_RULES
from .rules.reductions import REDUCTION_RULES
from .rules.units import UNIT_RULES


class SimplifyAlgebra(RulePass):
    """Apply the rules of ``rules/units.py``, ``linear.py``, ``reductions.py``, ``contractions.py`` and
    ``horizontal.py`` until none matches.

    Batch normalisation, in any primitive form, becomes one factor and one summand per channel; the preceding
    convolution or dot absorbs the factor.
    """

    name = "simplify_algebra"
    rules = (*UNIT_RULES, *LINEAR_RULES, *REDUCTION_RULES, *CONTRACTION_RULES, *HORIZONTAL_RULES)
