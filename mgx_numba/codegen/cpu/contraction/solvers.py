"""Solvers of contractions over declared register tiles: `GEMM_SOLVERS` of matrix products, `CONV_SOLVERS` of
convolutions, and the choice of the applicable solver with the lowest estimated time.

A solver says whether it applies to a problem, packs constant weights, and plans kernel launches with symbolic
operands. Nothing here imports Numba.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from ...tuning.solver_set import unsupported
from ..machine import Machine, machine
from .bfloat16 import ConvBfloat16, GemmBfloat16
from .conv import ConvDirect, ConvPointwise
from .conv_amx import ConvAmx
from .conv_int8 import ConvInt8, ConvInt8Residual
from .conv_transposed import ConvTransposed, ConvTransposedAmx
from .depthwise import ConvDepthwise, ConvDepthwiseAny
from .gemm import GemmInPlace, GemmPacked, GemmPacking
from .gemm_amx import ConvPointwiseAmx, GemmAmx
from .gemm_block_quant import GemmBlockQuant, GemmBlockQuantBytes
from .gemm_int8 import GemmInt8, GemmInt8Residual, GemmPackingInt8
from .gemv import GemvColumns, GemvPacked, GemvRows
from .gemv_block_quant import GemvBlockQuant
from .gemv_int16 import GemvInt16
from .solver import AnySolver
from .strassen.solver import GemmStrassen
from .winograd.form import Form
from .winograd.solver import ConvWinograd, ConvWinogradInt8, ConvWinogradStrided
from .winograd.winograd_amx import ConvWinogradAmx


def solvers_of(problem: GemmProblem | ConvProblem) -> tuple[AnySolver, ...]:
    """Return all solvers for problems of this type, applicable or not."""
    if isinstance(problem, GemmProblem):
        return GEMM_SOLVERS

    return CONV_SOLVERS


def packed_weights(solver: int, problem: GemmProblem | ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return weights packed by the solver with index ``solver`` among the problem's solvers."""
    packed: np.ndarray = solvers_of(problem)[solver].pack_weights(problem, weights)
    return packed


CONV_SOLVERS: tuple[AnySolver, ...] = (
    ConvPointwise(),
    ConvPointwiseAmx(),
    ConvDepthwise(),
    ConvDepthwiseAny(),
    ConvDirect(),
    ConvInt8(),
    ConvInt8Residual(),
    ConvBfloat16(),
    ConvAmx(),
    ConvTransposed(),
    ConvTransposedAmx(),
    *(ConvWinograd(Form(out, taps, stored)) for out, taps in ((2, 3), (4, 3), (2, 5)) for stored in (False, True)),
    ConvWinogradAmx(Form(2, 3, True)),
    *(ConvWinogradInt8(Form(2, 3, stored)) for stored in (False, True)),
    *(ConvWinogradStrided(Form(out, taps)) for out, taps in ((4, 3), (3, 4))),
)


GEMM_SOLVERS: tuple[AnySolver, ...] = (
    GemmPacked(),
    GemvPacked(),
    GemvInt16(),
    GemmInPlace(),
    GemmPacking(),
    GemvRows(),
    GemvColumns(),
    GemmStrassen(1),
    GemmStrassen(2),
    GemmInt8(),
    GemmInt8Residual(),
    GemmPackingInt8(),
    GemmBfloat16(),
    GemmAmx(),
    GemvBlockQuant(),
    GemmBlockQuant(),
    GemmBlockQuantBytes(),
)


LEAST_GAIN = 1.05
"""Ratio of a plain solver's estimate to the estimate of a solver that rewrites the arithmetic (`Solver.rewrites`) from
which the latter is taken: estimates are a few percent off, and plain products round less."""
SECONDS_PER_BYTE = 3e-12
"""Time (s) that each byte of growth of the weights has to save."""
REMEMBERED = 1024
"""Problems whose refusals and costs are cached for equal layers: networks have some tens of different problems."""


def select(
    problem: GemmProblem | ConvProblem, threads: int = 1, room: int | None = None, unsuited: Collection[str] = ()
) -> AnySolver:
    """Return the applicable solver with the lowest estimated time, with a penalty for weights that grow.

    Args:
        problem: the contraction.
        threads: threads that will share the work.
        room: bytes by which transformed weights may exceed the weights; None: unlimited.
        unsuited: names of solvers whose format cannot hold the values of the weights.

    Raises:
        UnsupportedError: no solver applies; the message has every solver's reason.
    """
    solvers = solvers_of(problem)
    collect_refusals: Callable[..., tuple[str | None, ...]] = _refusals
    estimate_cost: Callable[..., float] = _cost
    if problem.symbolic:  # solvers' queries about lengths have to be recorded each time
        collect_refusals, estimate_cost = _refusals.__wrapped__, _cost.__wrapped__
    refusals = list(collect_refusals(problem, machine()))
    for k, solver in enumerate(solvers):
        if refusals[k] is None and room is not None and solver.packing_growth(problem) > room:
            refusals[k] = f"its weights would grow by more than {room} bytes"
        if unsuited and solver.name in unsuited:
            refusals[k] = "the values of the weights do not fit its form"
    applicable = [k for k, refusal in enumerate(refusals) if refusal is None]
    if not applicable:
        raise unsupported(problem, ((s.name, reason) for s, reason in zip(solvers, refusals, strict=True)))
    return solvers[min(applicable, key=lambda k: estimate_cost(problem, k, threads, machine()))]


@functools.lru_cache(maxsize=REMEMBERED)
def _refusals(problem: GemmProblem | ConvProblem, of: Machine) -> tuple[str | None, ...]:
    """Return for each solver why it does not apply, or None, on machine ``of``."""
    return tuple([solver.refusal(problem) for solver in solvers_of(problem)])


@functools.lru_cache(maxsize=REMEMBERED)
def _cost(problem: GemmProblem | ConvProblem, number: int, threads: int, of: Machine) -> float:
    """Return the estimated time (s) of a solver on machine ``of``, plus the time that rewritten arithmetic and larger
    weights have to save."""
    solver = solvers_of(problem)[number]
    return weighed_seconds(solver, problem, threads) + SECONDS_PER_BYTE * solver.packing_growth(problem)


def weighed_seconds(solver: AnySolver, problem: GemmProblem | ConvProblem, threads: int) -> float:
    """Return the estimated time (s) of a solver. For rewritten arithmetic it is multiplied by `LEAST_GAIN` and by the
    machine record's factor of the method."""
    seconds = solver.estimate(problem, threads)
    if not solver.rewrites(problem):
        return seconds
    return seconds * LEAST_GAIN * dict(machine().methods).get(solver.method, solver.unrecorded)
