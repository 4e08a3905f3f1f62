"""Algebraic identities: units, constants merged into weights, reductions of repeated values, joined contractions.

Batch normalisation, in any primitive form, becomes one factor and one summand per channel; the preceding convolution or
dot absorbs the factor.
"""

from __future__ import annotations

from .rewriter import rule_pass
from .rules.contractions import CONTRACTION_RULES
from .rules.horizontal import HORIZONTAL_RULES
from .rules.linear import LINEAR_RULES
from .rules.reductions import REDUCTION_RULES
from .rules.units import UNIT_RULES

SimplifyAlgebra = rule_pass(
    "simplify_algebra", *UNIT_RULES, *LINEAR_RULES, *REDUCTION_RULES, *CONTRACTION_RULES, *HORIZONTAL_RULES
)
