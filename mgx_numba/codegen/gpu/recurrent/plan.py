"""Choose the kernels of a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterator

from ...launch import Solution
from ...problems.recurrence import RecurrenceProblem
from ..driver.device import known_architecture
from ..machine import multiprocessors
from .persistent import persistent_solution
from .steps import steps_solution
from .tiles import ranked_tiles


def recurrent_solutions(problem: RecurrenceProblem, origin: str = "") -> Iterator[Solution]:
    """Yield the solutions of a recurrent layer on a device, least estimated time first. A persistent kernel needs all
    blocks resident; another device may have fewer multiprocessors.

    Operands: ``x``; ``w`` (recurrent weights in the operator's layout); ``y``; ``last``; for LSTM ``last_cell``;
    ``first`` and for LSTM ``first_cell`` (initial states [lanes, batch, hidden], row-major, compute type);
    ``peephole``, ``inner_bias``, ``lengths`` if the problem declares them; ``scratch`` if the solution needs it.
    """
    for tile in ranked_tiles(problem, known_architecture(), multiprocessors()):
        yield steps_solution(problem, origin) if tile is None else persistent_solution(problem, tile, origin)
