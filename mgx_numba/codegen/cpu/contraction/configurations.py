"""The ways to compute a contraction that tuning tries: solvers as they are, and other blockings of the best one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ...problems.contraction import ConvProblem, GemmProblem
from ...tuning.record import TuningRecord
from ...tuning.request import Candidate, Request
from ..microkernels.tile_table import tile_for
from . import CONV_SOLVERS, GEMM_SOLVERS
from .blocking import Blocking, cut, cut_lines, fit
from .gemv import GemvPacked
from .strassen.solver import GemmStrassen
from .winograd.strided import WINOGRAD

__all__ = ["candidate_of", "refinements", "solver_candidates"]

_BLOCKING = ("rows", "panels", "taps", "depth", "parts")
_MOST_REFINEMENTS = 8


def solver_candidates(request: Request) -> list[Candidate]:
    """Every solver that applies, with its own blocking, in order of its estimate: the cost model's choice first."""
    problem = request.problem
    found = [s for s in _solvers(problem) if s.refusal(problem) is None]
    return [Candidate(s) for s in sorted(found, key=lambda s: s.estimate(problem, request.threads))]


def candidate_of(request: Request, record: TuningRecord) -> Candidate | None:
    """What a record says, or None if its solver does not exist or does not apply here. Any blocking is made to fit."""
    for solver in _solvers(request.problem):
        if solver.name == record.solver and solver.refusal(request.problem) is None:
            return Candidate(solver, _blocking(record.configuration))
    return None


def refinements(request: Request, winner: Candidate) -> list[Candidate]:
    """Blockings near the one that a solver would choose: rows and panels halved and doubled, other depths."""
    if isinstance(winner.solver, GemvPacked):
        return []
    if isinstance(winner.solver, WINOGRAD):
        near = _winograd_blockings(request)
    elif isinstance(winner.solver, GemmStrassen) and isinstance(request.problem, GemmProblem):
        near = winner.solver.blockings(request.problem, request.threads)
    else:
        near = _blockings(request, winner.solver.name in ("conv_depthwise", "conv_few_channels"))
    distinct = dict.fromkeys(b for b in near if b != winner.blocking)
    return [Candidate(winner.solver, b) for b in list(distinct)[:_MOST_REFINEMENTS]]


def _blockings(request: Request, by_lines: bool) -> list[Blocking]:
    problem = request.problem
    tile = tile_for(problem.dtype)
    if isinstance(problem, GemmProblem):
        m, n, depth, taps, groups = problem.m, problem.n, max(problem.k, 1), 1, problem.batch_count
    else:
        pixels = problem.in_pixels if problem.transposed else problem.out_pixels
        m, n, depth, taps, groups = (
            problem.batch * pixels, problem.group_out, problem.group_in, problem.taps, problem.groups,
        )  # fmt: skip
    if by_lines and isinstance(problem, ConvProblem):
        width = problem.out_lens[-1]
        lines = functools.partial(cut_lines, tile, m // width, width, problem.out_channels, request.threads)
        base = lines()
        return [b for b in (lines(given=near) for near in _scaled(base)) if b != base]
    beside = isinstance(problem, ConvProblem)
    base = fit(cut(tile, m, n, depth, taps, groups, request.threads, beside=beside), tile, m, n, depth, taps)
    scaled = _scaled(base)
    if depth * taps >= 512:
        whole = dataclasses.replace(base, depth=depth, taps=taps)
        scaled[4:4] = [whole, *(dataclasses.replace(base, depth=d, taps=1) for d in (256, 512) if d < depth)]
    fitted = (fit(b, tile, m, n, depth, taps) for b in scaled)
    return [b for b in fitted if b != base]


def _winograd_blockings(request: Request) -> list[Blocking]:
    """``rows`` counts output tiles; taps have no meaning."""
    return [Blocking(tiles, panels, 1, 1 << 16) for tiles in (12, 24, 48, 96) for panels in (1, 4, 1 << 16)]


def _scaled(base: Blocking) -> list[Blocking]:
    scales: Sequence[tuple[float, float]] = ((2, 1), (0.5, 1), (1, 2), (1, 0.5), (2, 0.5), (0.5, 2), (4, 1), (0.25, 1))
    return [
        dataclasses.replace(base, rows=max(1, int(base.rows * r)), panels=max(1, int(base.panels * p)))
        for r, p in scales
    ]


def _blocking(configuration: Mapping[str, int]) -> Blocking | None:
    if not configuration:
        return None
    return Blocking(*(int(configuration.get(name, 1)) for name in _BLOCKING))


def _solvers(problem: GemmProblem | ConvProblem) -> tuple[Any, ...]:
    return GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS
