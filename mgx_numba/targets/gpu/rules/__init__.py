"""Lowering rules of the ``gpu`` target, one file an operator family. Importing the package registers those that most
programs need; the others are imported for programs that have their operators."""

from . import clusters, contraction, data, views
from .table import RULES

__all__ = ["FAMILIES", "RULES", "clusters", "contraction", "data", "views"]

FAMILIES = {
    "attention": "attention fused_attention",
    "control": "if loop",
    "detection": "nonmaxsuppression roialign",
    "indexing": "gather gather_elements gathernd scan_slice onehot scatter_none scatter_add scatter_mul "
    "scatter_min scatter_max scatternd_none scatternd_add scatternd_mul scatternd_min scatternd_max",
    "ordering": "argmax argmin topk prefix_scan_sum",
    "recurrent": "recurrent_steps",
}
"""Operators by the module that has their rules, and that few programs need."""

for _module, _names in FAMILIES.items():
    RULES.family(f"{__name__}.{_module}", _names)
