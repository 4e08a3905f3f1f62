"""Lowering rules of the ``gpu`` target, one file for each operator family.

Importing the package registers the rules that most programs need. Other rules are imported for programs that have their
operators.
"""

from ...lowering import common
from ...lowering.rules import SHARED_FAMILIES
from . import contraction, data, views
from .table import RULES

__all__ = ["FAMILIES", "RULES", "common", "contraction", "data", "views"]

FAMILIES = SHARED_FAMILIES | {
    "attention": "attention fused_attention cached_attention",
    "caches": "update_cache",
    "control": "if if_short loop",
    "detection": "nonmaxsuppression roialign",
    "indexed": "fused_gather fused_scatter",
    "trees": "tree_ensemble",
}
"""Rarely used operators, by the module that has their rules."""

RULES.register_lazily(__name__, FAMILIES)
