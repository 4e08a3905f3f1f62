"""Which kernels compute an attention problem."""

from __future__ import annotations

from ..contraction.solver import Plan
from ..cpu.tile_table import tile_for
from .blocks import cut
from .kernel import block_launch
from .problem import AttentionProblem

__all__ = ["plan"]


def plan(problem: AttentionProblem, threads: int = 1) -> Plan:
    """The launches for ``threads`` threads; operands ``q``, ``k``, ``v``, ``out``, perhaps ``mask`` and ``scratch``."""
    problem = problem.with_grouped_rows()
    return Plan((block_launch(problem, cut(tile_for(problem.dtype), problem, threads)),))
