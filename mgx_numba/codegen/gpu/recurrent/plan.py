"""Which kernels compute a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterator

from ...launch import Solution
from ...problems.recurrence import RecurrenceProblem
from ..contraction.wgmma_tiles import multiprocessors
from ..driver.device import known_architecture
from .persistent import persistent_solution
from .steps import steps_solution
from .tiles import ranked_tiles

__all__ = ["recurrent_solutions"]


def recurrent_solutions(problem: RecurrenceProblem, origin: str = "", device_id: int = 0) -> Iterator[Solution]:
    """The launches of all steps, in each way that a device has, the quickest by estimate first: blocks that wait for
    each other must fit its multiprocessors, of which another device may have more.

    Operands are ``x``, ``w`` (recurrent weights as the operator has them, row-major), ``y``, ``last``, for lstm
    ``last_cell``, ``first`` and for lstm ``first_cell`` (initial states [lanes, batch, hidden], row-major, in the type
    that is computed in), those of ``peephole``, ``inner_bias`` and ``lengths`` that the problem declares, and
    ``scratch``, if the solution has some.
    """
    for tile in ranked_tiles(problem, known_architecture(), multiprocessors(device_id)):
        yield steps_solution(problem, origin) if tile is None else persistent_solution(problem, tile, origin)
