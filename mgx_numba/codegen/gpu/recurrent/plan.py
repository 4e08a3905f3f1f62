"""Which kernels compute a recurrent layer."""

from __future__ import annotations

from ...launch import Solution
from ...problems.recurrence import RecurrenceProblem
from ..contraction.wgmma_tiles import multiprocessors
from ..driver.device import known_architecture
from .persistent import persistent_solution
from .steps import steps_solution
from .tiles import best_tile

__all__ = ["recurrent_solution"]


def recurrent_solution(problem: RecurrenceProblem, origin: str = "") -> Solution:
    """The launches of all steps: one that keeps the weights, where that is quicker by estimate.

    Operands are ``x``, ``w`` (recurrent weights as the operator has them, row-major), ``y``, ``last``, for lstm
    ``last_cell``, ``first`` and for lstm ``first_cell`` (initial states [lanes, batch, hidden], row-major, in the type
    that is computed in), those of ``peephole``, ``inner_bias`` and ``lengths`` that the problem declares, and
    ``scratch``.
    """
    tile = best_tile(problem, known_architecture(), multiprocessors())
    return steps_solution(problem, origin) if tile is None else persistent_solution(problem, tile, origin)
