"""Cancel and merge reshapes, transposes, slices, gathers and concatenations, or make them views."""

from __future__ import annotations

from .rewriter import RulePass
from .rules.moves import MOVE_RULES
from .rules.slices import SLICE_RULES
from .rules.views import VIEW_RULES


class SimplifyReshapes(RulePass):
    """Apply the rules of ``rules/views.py``, ``rules/slices.py`` and ``rules/moves.py`` until none matches."""

    name = "simplify_reshapes"
    rules = (*VIEW_RULES, *SLICE_RULES, *MOVE_RULES)
