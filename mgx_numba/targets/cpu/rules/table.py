"""The table that the rules of this package are registered in."""

from __future__ import annotations

from ...lowering.common import COMMON
from ...lowering.rules import RuleTable

__all__ = ["RULES", "lowering"]

RULES = RuleTable(COMMON)
lowering = RULES.lowering
