"""Reduction clusters, and single reductions as clusters of one."""

from __future__ import annotations

from ....codegen.gpu.cluster.division import division_of
from ....codegen.reductions import REDUCTIONS
from ....graph.instruction import Instruction
from ...lowering import clusters
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("fused_reduce")
def lower_fused_reduce(low: Lowering, ins: Instruction) -> None:
    """One kernel for the cluster's module, or several if it has few rows."""
    axes = ins.op.axes  # type: ignore[attr-defined]
    clusters.lower_cluster(low, ins, ins.module_args[0], axes, low.inputs(ins), low.outputs_of(ins), division_of)


@lowering(*REDUCTIONS)
def lower_reduction(low: Lowering, ins: Instruction) -> None:
    """A reduction that no cluster took."""
    clusters.lower_reduction(low, ins, division_of)
