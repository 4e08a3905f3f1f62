"""Lowering with the rules of the ``cpu`` target."""

from __future__ import annotations

from ...codegen.cpu.backend import BACKEND
from ...graph.program import Program
from ...runtime.plan import Plan
from ..lowering.lowering import Lowering
from ..lowering.released_constants import Spending
from ..lowering.shared_weights import SharedWeights
from .options import CpuOptions
from .rules import RULES

__all__ = ["lower", "lower_and_spend"]


def lower(program: Program, options: CpuOptions) -> Plan:
    """The plan that runs an optimised program on this machine."""
    return Lowering(program, options, RULES, BACKEND).run()


def lower_and_spend(
    program: Program, options: CpuOptions, original: Program, shared: SharedWeights | None = None
) -> tuple[Plan, bool]:
    """As `lower`, but big literals that ``original`` does not have are taken out of ``program`` once they are packed.

    ``shared`` has the packed weights of other plans of the same dynamic program, and takes those of this one.

    Returns:
        The plan, and whether ``program`` is still whole.
    """
    run = Lowering(program, options, RULES, BACKEND)
    run.spending, run.shared = Spending(run, original), shared
    return run.run(), not run.spending.spent
