"""The rule table that the modules of this package fill."""

from __future__ import annotations

from ...lowering.rules import RuleTable
from ...lowering.view_operators import VIEWS

RULES = RuleTable(VIEWS)
lowering = RULES.lowering
