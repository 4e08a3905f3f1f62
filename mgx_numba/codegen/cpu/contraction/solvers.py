"""Contractions: matrix products and convolutions, as solvers over declared register tiles.

A solver says whether it applies to a problem, packs constant weights, and plans kernel launches with symbolic
operands. Nothing here imports Numba.
"""

from __future__ import annotations

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from .solver import AnySolver


def solvers_of(problem: GemmProblem | ConvProblem) -> tuple[AnySolver, ...]:
    """Return all solvers for problems of this type, applicable or not."""
    if isinstance(problem, GemmProblem):
        from .gemm_solvers import GEMM_SOLVERS

        return GEMM_SOLVERS
    from .conv_solvers import CONV_SOLVERS  # late: many programs have no convolution

    return CONV_SOLVERS


def packed_weights(solver: int, problem: GemmProblem | ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return weights packed by the solver with index ``solver`` among the problem's solvers."""
    packed: np.ndarray = solvers_of(problem)[solver].pack_weights(problem, weights)
    return packed
