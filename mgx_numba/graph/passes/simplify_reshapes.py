"""Cancel and merge reshapes, transposes, slices, gathers and concatenations, or make them views."""

from __future__ import annotations

from .rewriter import rule_pass
from .rules.moves import MOVE_RULES
from .rules.scatters import SCATTER_RULES
from .rules.slices import SLICE_RULES
from .rules.views import VIEW_RULES

SimplifyReshapes = rule_pass("simplify_reshapes", *VIEW_RULES, *SLICE_RULES, *SCATTER_RULES, *MOVE_RULES)
