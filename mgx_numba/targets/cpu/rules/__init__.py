"""Lowering rules of the ``cpu`` target, one file for each operator family.

Importing the package registers the rules that most programs need. Other rules are imported for programs that have their
operators.
"""

from ...lowering import common
from ...lowering.rules import SHARED_FAMILIES
from . import contraction, views
from .table import RULES

__all__ = ["FAMILIES", "RULES", "common", "contraction", "views"]

FAMILIES = SHARED_FAMILIES | {
    "attention": "attention",
    "caches": "update_cache cached_attention",
    "control": "if if_short loop run_on_target select_module",
    "custom": "custom",
    "detection": "nonmaxsuppression roialign max_roi_pool",
    "linear": "solve_triangular",
    "ordering": f"{SHARED_FAMILIES['ordering']} nonzero unique",
    "pooling": "pooling lrn col2im",
    "random_numbers": "random_uniform",
    "resampling": "pad pad_with fixed_pad resize reverse window_sum",
    "trees": "tree_ensemble pairwise_coupling",
}
"""Rarely used operators, by the module that has their rules."""

RULES.register_lazily(__name__, FAMILIES)
