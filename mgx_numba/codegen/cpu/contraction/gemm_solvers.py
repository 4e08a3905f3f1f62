"""The solvers of matrix products."""

from __future__ import annotations

from .bfloat16 import GemmBfloat16
from .gemm import GemmInPlace, GemmPacked, GemmPacking
from .gemm_amx import GemmAmx
from .gemm_block_quant import GemmBlockQuant, GemmBlockQuantBytes
from .gemm_int8 import GemmInt8, GemmInt8Residual, GemmPackingInt8
from .gemv import GemvPacked
from .gemv_block_quant import GemvBlockQuant
from .gemv_int16 import GemvInt16
from .gemv_rows import GemvColumns, GemvRows
from .solver import AnySolver
from .strassen.solver import GemmStrassen

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
