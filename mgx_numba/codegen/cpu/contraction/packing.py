"""Weights that are packed in a run: those of a contraction that are not constant."""

from __future__ import annotations

from typing import Any

import numpy as np

from .solvers import CONV_SOLVERS, GEMM_SOLVERS

__all__ = ["SOLVERS", "packed_weights"]

SOLVERS: tuple[Any, ...] = (*GEMM_SOLVERS, *CONV_SOLVERS)


def packed_weights(solver: int, problem: Any, weights: np.ndarray) -> np.ndarray:
    """Return weights as a solver, by its number among `SOLVERS`, packs them."""
    packed: np.ndarray = SOLVERS[solver].pack_weights(problem, weights)
    return packed
