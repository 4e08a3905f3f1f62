"""Choose the kernels of a recurrent layer; for symbolic numbers of steps and sequences a few persistent kernels, chosen
by the batch.

The number of steps is an argument of each kernel. Kernels have room for some sequences of a slice, which a batch must
not exceed; the general kernel exchanges states through device memory, and serves any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ....core.dim import Dim, Length, all_of, evaluate, less_equal, symbols_of
from ....errors import UnsupportedError
from ...alternatives import at_lengths, fastest_where, lengths_in, shares, worth_having
from ...launch import Solution
from ...problems.recurrence import RecurrenceProblem
from ..driver.device import known_architecture
from ..machine import multiprocessors
from .persistent import persistent_solution
from .steps import steps_solution
from .tiles import PersistentTile, fits, fitting_tiles, ranked_tiles, tile_seconds


def recurrent_solutions(problem: RecurrenceProblem, origin: str = "") -> Iterator[Solution]:
    """Yield the solutions of a recurrent layer on a device, least estimated time first. A persistent kernel needs all
    blocks resident; another device may have fewer multiprocessors.

    Operands: ``x``; ``w`` (recurrent weights in the operator's layout); ``y``; ``last``; for LSTM ``last_cell``;
    ``first`` and for LSTM ``first_cell`` (initial states [lanes, batch, hidden], row-major, compute type);
    ``peephole``, ``inner_bias``, ``lengths`` if the problem declares them; ``scratch`` if the solution needs it.
    """
    for tile in ranked_tiles(problem, known_architecture(), multiprocessors()):
        yield steps_solution(problem, origin) if tile is None else persistent_solution(problem, tile, origin)


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Batches for which kernels are compared."""
ROWS = (1, 4, 16, 64)
"""Sequences of a slice for which kernels have room."""
ANY_ROWS = 1 << 30
"""A number of sequences of a slice that no batch exceeds."""
MOST_KERNELS = 2
"""Kernels besides the general kernel: each is compiled."""

Costs = dict[PersistentTile, float]


def open_solutions(problem: RecurrenceProblem, origin: str = "") -> tuple[list[Solution], Length]:
    """Return the launches of a layer of symbolic lengths, and the condition under which they compute it; operands are
    those of `recurrent_solutions`.

    Raises:
        UnsupportedError: no kernel computes all steps, for example since the weights do not fit the registers.
    """
    grows = isinstance(problem.batch, Dim)
    table = [(sample, _costs(at_lengths(problem, sample), grows)) for sample in _samples(problem, BATCHES)]
    unlimited = [tile for tile in table[0][1] if tile.most_rows == ANY_ROWS or not grows]
    if not unlimited:
        raise UnsupportedError("no kernel computes all steps of a recurrent layer of this size")
    general = min(unlimited, key=lambda tile: sum(costs[tile] / min(costs.values()) for _, costs in table))
    picked = worth_having(general, [costs for _, costs in table], MOST_KERNELS) if grows else [general]
    where = fastest_where(problem.batch, table, picked)
    most = {tile: tile.slices * tile.most_rows for tile in picked if tile is not general}
    for tile, batch in most.items():
        where[tile] = all_of(where[tile], less_equal(problem.batch, batch))
    beyond = _samples(problem, [1 + batch for batch in (*most.values(), BATCHES[-1])]) if grows else []
    rows = [*table, *((sample, {general: 1.0}) for sample in beyond)]
    found, covered = shares(
        problem, [*most, general], where, rows, lambda tile, own: persistent_solution(own, tile, origin)
    )
    return [solution for _, solution in found], covered


def _samples(problem: RecurrenceProblem, batches: Sequence[int]) -> list[dict[Dim, int]]:
    """Return values of the symbols: example lengths, with growing batches."""
    symbols = symbols_of(lengths_in(problem))
    hints = symbols[0].scope.hints()
    batch = symbols_of([problem.batch])
    found: dict[int, dict[Dim, int]] = {}
    for size in batches if batch else (1,):
        grown = {s: max(s.low or 1, size if s.high is None else min(size, s.high)) for s in batch}
        sample = {s: max(1, grown.get(s, hints[s])) for s in symbols}
        found.setdefault(evaluate(problem.batch, sample), sample)
    return [found[size] for size in sorted(found)]


def _costs(problem: RecurrenceProblem, grows: bool) -> Costs:
    """Return the estimated time (s) of each kernel that computes all steps of a problem of plain numbers, of which the
    batch may grow."""
    arch, count = known_architecture(), multiprocessors()
    found: Costs = {}
    for tile in fitting_tiles(problem, arch, count):
        for rows in _rooms(tile, problem.batch) if grows else (0,):
            roomy = replace(tile, most_rows=rows)
            if fits(problem, roomy, arch):
                found[roomy] = tile_seconds(problem, roomy)
    return found


def _rooms(tile: PersistentTile, batch: int) -> Sequence[int]:
    """Return the numbers of sequences for which a kernel may have room."""
    rooms = [rows for rows in ROWS if rows >= tile.slice_rows(batch)]
    return [*rooms, ANY_ROWS] if tile.kind == "grid" else rooms
