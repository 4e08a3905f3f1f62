"""Lowering of ensembles of decision trees on a GPU."""

from __future__ import annotations

from ....codegen.gpu.data.tree_ensemble import trees_launch
from ...lowering.tree_operands import tree_rule
from .table import lowering

lowering("tree_ensemble")(tree_rule(trees_launch, by_threads=False))
