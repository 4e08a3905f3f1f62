"""Contractions: matrix products and convolutions, as solvers over declared register tiles.

A solver says whether it applies to a problem, packs constant weights, and plans kernel launches with symbolic
operands. Nothing here imports Numba.
"""

from __future__ import annotations

from .conv import ConvDirect, ConvPointwise
from .depthwise import ConvDepthwise
from .gemm import GemmInPlace, GemmPacked, GemmPacking
from .transposed import ConvTransposed
from .winograd import ConvWinograd

__all__ = ["CONV_SOLVERS", "GEMM_SOLVERS"]

GEMM_SOLVERS = (GemmPacked(), GemmInPlace(), GemmPacking())
CONV_SOLVERS = (ConvPointwise(), ConvDepthwise(), ConvDirect(), ConvTransposed(), ConvWinograd(2), ConvWinograd(4))
