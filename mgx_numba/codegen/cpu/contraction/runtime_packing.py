"""Pack the weights of a contraction at run time, if they are not constant."""

from __future__ import annotations

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from .solvers import solvers_of


def packed_weights(solver: int, problem: GemmProblem | ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return weights packed by the solver with index ``solver`` among the problem's solvers."""
    packed: np.ndarray = solvers_of(problem)[solver].pack_weights(problem, weights)
    return packed
