"""Solvers of contractions over declared register tiles: `GEMM_SOLVERS` of matrix products, `CONV_SOLVERS` of
convolutions.

A solver says whether it applies to a problem, packs constant weights, and plans kernel launches with symbolic
operands. Nothing here imports Numba.
"""

from __future__ import annotations

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from .bfloat16 import ConvBfloat16, GemmBfloat16
from .conv import ConvDirect, ConvPointwise
from .conv_amx import ConvAmx
from .conv_int8 import ConvInt8, ConvInt8Residual
from .conv_transposed import ConvTransposed
from .conv_transposed_amx import ConvTransposedAmx
from .depthwise import ConvDepthwise, ConvDepthwiseAny
from .gemm import GemmInPlace, GemmPacked, GemmPacking
from .gemm_amx import ConvPointwiseAmx, GemmAmx
from .gemm_block_quant import GemmBlockQuant, GemmBlockQuantBytes
from .gemm_int8 import GemmInt8, GemmInt8Residual, GemmPackingInt8
from .gemv import GemvPacked
from .gemv_block_quant import GemvBlockQuant
from .gemv_int16 import GemvInt16
from .gemv_rows import GemvColumns, GemvRows
from .solver import AnySolver
from .strassen.solver import GemmStrassen
from .winograd.form import Form
from .winograd.solver import ConvWinograd, ConvWinogradInt8
from .winograd.strided import ConvWinogradStrided
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
    *(ConvWinogradStrided(Form(out, taps, stored)) for out, taps in ((4, 3), (3, 4)) for stored in (False, True)),
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
