"""Lowering rules of the ``cpu`` target, one file an operator family. Importing the package registers those that most
programs need; the others are imported for programs that have their operators."""

from ...lowering.rules import SHARED_FAMILIES
from . import clusters, contraction, views
from .table import RULES

__all__ = ["FAMILIES", "RULES", "clusters", "contraction", "views"]

FAMILIES = SHARED_FAMILIES | {
    "attention": "attention",
    "control": "if loop select_module",
    "custom": "custom",
    "detection": "nonmaxsuppression",
    "pooling": "pooling lrn",
    "resampling": "pad pad_with fixed_pad resize reverse",
    "trees": "tree_ensemble",
}
"""Operators by the module that has their rules, and that few programs need."""

RULES.import_late(__name__, FAMILIES)
