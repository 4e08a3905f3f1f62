"""Pack the weights of a contraction at run time, if they are not constant."""

from __future__ import annotations

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from .solver import AnySolver
from .solvers import CONV_SOLVERS, GEMM_SOLVERS

SOLVERS: tuple[AnySolver, ...] = (*GEMM_SOLVERS, *CONV_SOLVERS)


def packed_weights(solver: int, problem: GemmProblem | ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return weights packed by the solver with index ``solver`` in `SOLVERS`."""
    packed: np.ndarray = SOLVERS[solver].pack_weights(problem, weights)
    return packed
