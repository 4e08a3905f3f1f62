"""Register the rules of reduction clusters, and of single reductions."""

from __future__ import annotations

from ....codegen.reductions import REDUCTIONS
from ...lowering.reductions import lower_fused_reduce, lower_reduction
from .table import lowering

lowering("fused_reduce")(lower_fused_reduce)
lowering(*REDUCTIONS)(lower_reduction)
