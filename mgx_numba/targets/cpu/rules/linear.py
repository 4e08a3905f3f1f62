"""Lower systems of linear equations."""

from __future__ import annotations

from ....codegen.cpu.data.substitution import solve_triangular_launch
from ...lowering.launched import solve_triangular_rule
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

lowering("solve_triangular", accepts=keeps_inner_axis)(solve_triangular_rule(solve_triangular_launch))
